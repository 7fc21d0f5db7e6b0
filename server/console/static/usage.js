// The chart of the usage page: stacked bars of days, from the figures in its data-chart.

const box = document.getElementById("usage-chart");
const HEIGHT = 260;

function style(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function compact(value) {
  return new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 }).format(value);
}

// Each line of the result is the sum of a group and of those before it, the last group first, because bars are
// drawn over each other.
function stack(values) {
  const sums = [];
  for (const line of values) {
    const below = sums.at(-1);
    sums.push(line.map((value, day) => value + (below ? below[day] : 0)));
  }
  return sums.reverse();
}

function draw(chart) {
  const names = [...chart.names].reverse();
  const values = [...chart.values].reverse();
  const bars = uPlot.paths.bars({ size: [0.75, 60] });
  const axis = { stroke: style("--muted"), grid: { stroke: style("--line"), width: 1 }, ticks: { show: false } };
  const options = {
    width: box.clientWidth,
    height: HEIGHT,
    legend: { live: true },
    cursor: { points: { show: false }, drag: { setScale: false } },
    scales: { x: { time: false, range: [-0.6, chart.days.length - 0.4] }, y: { range: (_, low, high) => [0, high || 1] } },
    axes: [
      { ...axis, grid: { show: false }, incrs: [1, 2, 5, 7, 10, 30, 90], values: (_, ticks) => ticks.map((tick) => (chart.days[tick] ?? "").slice(5)) },
      { ...axis, size: 60, values: (_, ticks) => ticks.map(compact) },
    ],
    series: [
      { label: "Day", value: (_, day) => chart.days[day] ?? "" },
      ...names.map((name, place) => {
        const colour = style(`--series-${names.length - 1 - place}`);
        return { label: name, stroke: colour, fill: colour, width: 0, paths: bars, points: { show: false },
          value: (_, sum, series, day) => (day === null ? "" : compact(values[series - 1][day])) };
      }),
    ],
  };
  box.replaceChildren();
  return new uPlot(options, [chart.days.map((_, place) => place), ...stack(chart.values)], box);
}

if (box) {
  const chart = JSON.parse(box.dataset.chart);
  if (chart.names.length > 0) {
    let plot = draw(chart);
    addEventListener("resize", () => plot.setSize({ width: box.clientWidth, height: HEIGHT }));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      plot.destroy();
      plot = draw(chart);
    });
  }
}
