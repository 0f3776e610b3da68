"""A page on the runs of a data folder, and a report on one: both only look.

curves.py      session tables -> mean and band over sessions, thinned out for the screen
run_files.py   what else a run folder has to show: spec, metrics, profile, logs, videos
comparison.py  several runs side by side: where specs differ, scores against targets
figures.py     curves -> a plotly figure in light or dark
panels.py      run data -> the parts of the page
layout.py      what is on the page
page.py        what happens when time passes or something is clicked
server.py      who may ask for what: routes, Host and Origin, headers
report.py      one run as one HTML file, to send to somebody
"""
