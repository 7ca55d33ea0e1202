"use strict";
// A pattern for each region: its colour below, its hatch above. Used as fill "url(#region-N)".
const SVG = "http://www.w3.org/2000/svg";

function svg(tag, attributes, parent) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  if (parent) parent.appendChild(element);
  return element;
}

function html(tag, text, parent, className) {
  const element = document.createElement(tag);
  if (text !== undefined && text !== null) element.textContent = String(text);
  if (className) element.className = className;
  if (parent) parent.appendChild(element);
  return element;
}

const HATCHES = {
  solid: [], rising: ["M-1 1l2-2M0 6l6-6M5 7l2-2"], falling: ["M-1 5l2 2M0 0l6 6M5-1l2 2"],
  horizontal: ["M0 1.5h6M0 4.5h6"], vertical: ["M1.5 0v6M4.5 0v6"], cross: ["M0 6l6-6M0 0l6 6"],
  grid: ["M3 0v6M0 3h6"], wide_rising: ["M0 6l6-6"], wide_falling: ["M0 0l6 6"], dots: [], rings: [],
};

function addPatterns(regions) {
  const holder = svg("svg", { width: 0, height: 0, "aria-hidden": "true", focusable: "false" }, document.body);
  holder.style.position = "absolute";
  const defs = svg("defs", {}, holder);
  regions.forEach((region, number) => {
    const wide = region.hatch.startsWith("wide");
    const pattern = svg("pattern", {
      id: "region-" + number, class: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse",
      patternTransform: wide ? "scale(1.8)" : "scale(1)",
    }, defs);
    svg("rect", { width: 6, height: 6, fill: region.colour }, pattern);
    for (const d of HATCHES[region.hatch] || []) svg("path", { d }, pattern);
    if (region.hatch === "dots") svg("circle", { class: "dot", cx: 3, cy: 3, r: 1.1 }, pattern);
    if (region.hatch === "rings") svg("circle", { cx: 3, cy: 3, r: 2 }, pattern);
  });
}

function swatch(number, parent) {
  const picture = svg("svg", { class: "swatch", viewBox: "0 0 18 14", "aria-hidden": "true" }, parent);
  svg("rect", { width: 18, height: 14, fill: `url(#region-${number})` }, picture);
}
