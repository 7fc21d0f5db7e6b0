// The SQL page: Ctrl+Enter runs the query, and the result's chart is drawn.

const COLORS = ["#0b6b63", "#b3561e", "#4a5fc1", "#8a5a00", "#9c3587", "#1d6b34", "#7a7a2a", "#b3261e"];
const HEIGHT = 260;

function onKey(event) {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) event.target.form.requestSubmit();
}

// An axis of names has a name at each whole number.
function axisOf(chart, color) {
  const axis = { stroke: color, grid: { stroke: "#8884", width: 1 } };
  if (chart.kind !== "name") return axis;
  const name = (place) => (Number.isInteger(place) ? (chart.names[place] ?? "").slice(0, 20) : "");
  return { ...axis, values: (_plot, places) => places.map(name) };
}

function draw(place) {
  const chart = JSON.parse(place.dataset.chart);
  const color = getComputedStyle(place).color;
  const marks = chart.kind === "name" ? { paths: window.uPlot.paths.bars(), points: { show: false } } : {};
  const series = chart.series.map(([label], index) => ({
    label,
    stroke: COLORS[index],
    fill: chart.kind === "name" ? `${COLORS[index]}80` : undefined,
    spanGaps: true,
    ...marks,
  }));
  const first = chart.kind === "name" ? { label: "", value: (_plot, at) => chart.names[at] ?? "" } : {};
  const plot = new window.uPlot(
    {
      width: place.clientWidth,
      height: HEIGHT,
      scales: { x: { time: chart.kind === "time", ...(chart.kind === "name" && { range: [-0.6, chart.x.length - 0.4] }) } },
      tzDate: (seconds) => window.uPlot.tzDate(new Date(seconds * 1e3), "UTC"),
      axes: [axisOf(chart, color), { stroke: color, grid: { stroke: "#8884", width: 1 }, size: 70 }],
      series: [first, ...series],
    },
    [chart.x, ...chart.series.map(([, values]) => values)],
    place,
  );
  new ResizeObserver(() => plot.setSize({ width: place.clientWidth, height: HEIGHT })).observe(place);
}

document.getElementById("query").addEventListener("keydown", onKey);
document.querySelectorAll("[data-chart]").forEach(draw);
