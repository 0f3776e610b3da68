// Draws the figures of a report, in the colours that its reader's system prefers.
const figures = JSON.parse(document.getElementById("figures").textContent);
const config = {displaylogo: false, responsive: true};
const dark = window.matchMedia("(prefers-color-scheme: dark)");
function draw() {
  const style = getComputedStyle(document.documentElement);
  const ink = style.getPropertyValue("--ink").trim();
  const line = style.getPropertyValue("--line").trim();
  for (const place of document.querySelectorAll("[data-figure]")) {
    const {data, layout} = figures[Number(place.dataset.figure)];
    layout.font.color = ink;
    for (const axis of [layout.xaxis, layout.yaxis]) {
      Object.assign(axis, {gridcolor: line, linecolor: line});
      axis.tickfont.color = axis.title.font.color = ink;
    }
    layout.hoverlabel.bgcolor = style.getPropertyValue("--card").trim();
    layout.hoverlabel.font.color = ink;
    for (const note of layout.annotations) note.font.color = ink;
    Plotly.react(place, data, layout, config);
  }
}
draw();
dark.addEventListener("change", draw);
