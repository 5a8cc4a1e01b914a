// Draws a dashboard with Grafana's own components from what Prometheus answered: window.draw(dashboard, width), after
// which window.undrawn() tells which panels show nothing yet. A state timeline has no component in Grafana's packages, so its place only names it.

import React from "react";
import { createRoot } from "react-dom/client";
const {
  FieldType, ThemeContext, createTheme, dateTime, getDisplayProcessor, getFieldDisplayValues, renderMarkdown, standardTransformers,
  standardTransformersRegistry, toDataFrame, transformDataFrame,
} = require("@grafana/data");
// Its ES modules import what other packages export otherwise.
const { BigValue, BigValueTextMode, GlobalStyles, PanelChrome, Table, TimeSeries, VizRepeater } = require("@grafana/ui");

const COLUMNS = 24, ROW = 30, GAP = 8;
// Grafana's own font, Inter, is not in its packages.
const theme = createTheme({ colors: { mode: "dark" }, typography: { fontFamily: "'DejaVu Sans', sans-serif" } });

const { filterFieldsByNameTransformer, mergeTransformer, organizeFieldsTransformer } = standardTransformers;
standardTransformersRegistry.setInit(() =>
  [filterFieldsByNameTransformer, mergeTransformer, organizeFieldsTransformer].map((transformation) => ({
    id: transformation.id, name: transformation.name, transformation: async () => transformation, editor: () => null,
  })));

// A label's value for each {{name}}.
function legend(format, labels) {
  if (!format) return Object.entries(labels).map(([name, value]) => `${name}="${value}"`).join(", ");
  return format.replace(/{{\s*(\w+)\s*}}/g, (_, name) => labels[name] ?? "").trim();
}

// The frames of a panel: one per series, or one per query where it asks for a table.
function framesOf(panel) {
  return panel.targets.flatMap((target) => {
    const several = panel.targets.length > 1;
    if (target.format === "table") {
      const names = [...new Set(target.answer.flatMap(({ metric }) => Object.keys(metric)))].sort();
      const column = (name) => target.answer.map(({ metric }) => metric[name] ?? "");
      return [toDataFrame({
        refId: target.refId,
        fields: [
          { name: "Time", type: FieldType.time, values: target.answer.map(({ values }) => values.at(-1)[0] * 1000) },
          ...names.map((name) => ({ name, type: FieldType.string, values: column(name) })),
          {
            name: several ? `Value #${target.refId}` : "Value", type: FieldType.number,
            values: target.answer.map(({ values }) => Number(values.at(-1)[1])),
          },
        ],
      })];
    }
    return target.answer.map(({ metric, values }) => toDataFrame({
      refId: target.refId,
      fields: [
        { name: "Time", type: FieldType.time, values: values.map(([time]) => time * 1000) },
        {
          name: "Value", type: FieldType.number, labels: metric, values: values.map(([, value]) => Number(value)),
          config: { displayNameFromDS: legend(target.legendFormat, metric) },
        },
      ],
    }));
  });
}

const MATCHERS = {
  byName: (wanted) => (name) => name === wanted,
  byRegexp: (wanted) => {
    const pattern = new RegExp(wanted.replace(/^\/(.*)\/$/, "$1"));
    return (name) => pattern.test(name);
  },
};

// Gives each field the panel's settings, its colour and its way to print values.
function configure(frames, { fieldConfig, type }) {
  let series = 0;
  for (const frame of frames) {
    for (const field of frame.fields) {
      const name = field.config.displayName ?? field.config.displayNameFromDS ?? field.name;
      const config = { ...structuredClone(fieldConfig.defaults), ...field.config };
      for (const { matcher, properties } of fieldConfig.overrides) {
        if (!MATCHERS[matcher.id](matcher.options)(name)) continue;
        for (const { id, value } of properties) {
          if (id.startsWith("custom.")) config.custom = { ...config.custom, [id.slice(7)]: value };
          else config[id] = value;
        }
      }
      // Grafana keeps thresholds without a value as minus infinity.
      for (const step of config.thresholds?.steps ?? []) step.value ??= -Infinity;
      if (type === "timeseries") config.color ??= { mode: "palette-classic" };
      if (field.type === FieldType.time) config.unit = undefined;
      config.links = undefined; // they lead out of the picture
      field.config = config;
      field.state = { displayName: name, seriesIndex: field.type === FieldType.number ? series++ : undefined };
      field.display = getDisplayProcessor({ field, theme, timeZone: "utc" });
    }
  }
  return frames;
}

function Stat({ panel, frames, width, height }) {
  const { reduceOptions, colorMode, graphMode, textMode, justifyMode } = panel.options;
  const values = getFieldDisplayValues({
    fieldConfig: panel.fieldConfig, reduceOptions, replaceVariables: (text) => text, theme, data: frames,
    sparkline: graphMode === "area", timeZone: "utc",
  });
  if (values.length === 0) return <Empty panel={panel} />;
  const value = ({ value: { display, sparkline }, width, height, count }) => (
    <BigValue value={display} sparkline={sparkline} colorMode={colorMode} graphMode={graphMode} justifyMode={justifyMode ?? "auto"}
      textMode={textMode === "auto" ? (count > 1 ? BigValueTextMode.ValueAndName : BigValueTextMode.Auto) : textMode}
      width={width} height={height} theme={theme} />
  );
  return <VizRepeater getValues={() => values} renderValue={value} width={width} height={height} source={values} itemSpacing={3}
    renderCounter={0} autoGrid orientation="auto" />;
}

function Series({ panel, frames, width, height }) {
  const points = frames.filter((frame) => frame.length > 0);
  if (points.length === 0) return <Empty panel={panel} />;
  const times = points.flatMap((frame) => frame.fields[0].values);
  const from = Math.min(...times), to = Math.max(...times);
  const range = { from: dateTime(from), to: dateTime(to), raw: { from: "now-5m", to: "now" } };
  const options = { showLegend: true, calcs: [], ...panel.options.legend };
  return <TimeSeries frames={points} structureRev={1} timeRange={range} timeZone="utc" width={width} height={height} legend={options}
    options={{}} />;
}

function Empty({ panel }) {
  const text = panel.fieldConfig?.defaults.noValue ?? "No data";
  return <div style={{ display: "flex", height: "100%", alignItems: "center", justifyContent: "center", textAlign: "center" }}>{text}</div>;
}

function Rows({ panel, frame, width, height }) {
  if (!frame || frame.length === 0) return <Empty panel={panel} />;
  return <Table data={frame} width={width} height={height} timeRange={undefined} columnMinWidth={60} initialSortBy={panel.options.sortBy}
    enablePagination={panel.options.enablePagination} />;
}

// The frames of a panel as its transformations leave them.
function transformed(panel) {
  return new Promise((done) => transformDataFrame(panel.transformations ?? [], framesOf(panel)).subscribe(done));
}

function Plot({ panel, width, height }) {
  const { frames } = panel;
  switch (panel.type) {
    case "stat": return <Stat {...{ panel, frames, width, height }} />;
    case "timeseries": return <Series {...{ panel, frames, width, height }} />;
    case "table": return <Rows {...{ panel, frame: frames[0], width, height }} />;
    default: return <div style={{ padding: 16, fontStyle: "italic" }}>{panel.type}: only Grafana itself draws it</div>;
  }
}

function Panel({ panel, width, height }) {
  if (panel.type === "row") return <h3 style={{ margin: "4px 0" }}>{panel.title}</h3>;
  if (panel.type === "text") return <div className="markdown-html" dangerouslySetInnerHTML={{ __html: renderMarkdown(panel.options.content) }} />;
  return (
    <PanelChrome title={panel.title} width={width} height={height}>
      {(inner, innerHeight) => <Plot panel={panel} width={inner} height={innerHeight} />}
    </PanelChrome>
  );
}

function Dashboard({ dashboard, width }) {
  const unit = width / COLUMNS;
  const bottom = Math.max(...dashboard.panels.map(({ gridPos }) => gridPos.y + gridPos.h));
  const place = ({ x, y, w, h }) => ({
    position: "absolute", left: x * unit + GAP / 2, top: y * (ROW + GAP), width: w * unit - GAP, height: h * (ROW + GAP) - GAP,
  });
  return (
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <style>{"strong { font-weight: bold !important; }"}</style>
      <div id="dashboard">
        <h2 style={{ margin: GAP }}>{dashboard.title}: {dashboard.chosen}</h2>
        <div style={{ position: "relative", width, height: bottom * (ROW + GAP) }}>
          {dashboard.panels.map((panel, index) => (
            <div key={index} data-panel={index} style={place(panel.gridPos)}>
              <Panel panel={panel} width={panel.gridPos.w * unit - GAP} height={panel.gridPos.h * (ROW + GAP) - GAP} />
            </div>
          ))}
        </div>
      </div>
    </ThemeContext.Provider>
  );
}

window.draw = async (dashboard, width) => {
  for (const panel of dashboard.panels.filter(({ targets }) => targets.length > 0)) {
    panel.frames = configure(await transformed(panel), panel);
  }
  createRoot(document.body.appendChild(document.createElement("div"))).render(<Dashboard {...{ dashboard, width }} />);
  window.undrawn = () => dashboard.panels.filter((panel, index) => !isDrawn(panel, document.querySelector(`[data-panel="${index}"]`)))
    .map(({ title }) => title);
};

// Whether a panel shows something: a plot where there is data for one, else more than its title.
function isDrawn(panel, place) {
  if (!place) return false;
  if (panel.type === "timeseries" && panel.frames.some((frame) => frame.length > 0)) return place.querySelector("canvas")?.width > 0;
  if (!panel.frames) return true;
  return place.innerText.trim().length > panel.title.length;
}
