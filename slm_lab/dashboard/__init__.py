"""A page on the runs of a data folder, and a report on one run; both only read.

grids.py       the two tables of the page
curves.py      session tables -> mean and band over sessions -> a plotly figure in light or dark
run_files.py   other content of run folders: specs, scores, profiles, logs, videos
panels.py      run data -> the parts of the page
page.py        structure of the page, callbacks of the timer and of controls
server.py      access rules: routes, Host and Origin, headers
report.py      one run as one HTML file
"""
