"use strict";
// A chart with axes, zoom and a tooltip. draw(plot) paints; hover(x, y, plot) gives the tooltip's text or null.

const tip = html("div", null, document.body);
tip.id = "tip";
tip.hidden = true;
tip.setAttribute("role", "status");

function showTip(text, event) {
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  const box = tip.getBoundingClientRect();
  const left = event.clientX + 14 + box.width > innerWidth ? event.clientX - box.width - 10 : event.clientX + 14;
  const top = event.clientY + 14 + box.height > innerHeight ? event.clientY - box.height - 10 : event.clientY + 14;
  tip.style.left = Math.max(left, 4) + "px";
  tip.style.top = Math.max(top, 4) + "px";
}

function ticks(low, high, count) {
  const span = high - low;
  if (!(span > 0)) return [low];
  const raw = span / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-6; at += step) found.push(+at.toPrecision(10));
  return found;
}

function number(value) {
  return Math.abs(value) >= 1e6 ? (value / 1e6).toPrecision(4) + "M" : Number(value).toLocaleString("en-US", { maximumFractionDigits: 3 });
}

class Plot {
  constructor(holder, options) {
    Object.assign(this, { zoomY: false, downward: false, height: 260, left: 58 }, options);
    this.whole = { x: this.x.slice(), y: this.y.slice() };
    this.root = svg("svg", { class: "chart", tabindex: 0, role: "img", "aria-label": this.label }, holder);
    this.root.style.height = this.height + "px";
    this.root.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.root.addEventListener("pointermove", (event) => this.move(event));
    this.root.addEventListener("pointerdown", (event) => this.press(event));
    for (const name of ["pointerup", "pointercancel"]) this.root.addEventListener(name, () => { this.drag = null; });
    this.root.addEventListener("pointerleave", () => showTip(null));
    this.root.addEventListener("keydown", (event) => this.key(event));
    this.root.addEventListener("dblclick", (event) => { const at = this.at(event); this.zoom(0.5, at.x, at.y); });
    new ResizeObserver(() => this.later()).observe(this.root);
  }

  later() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.paint(); });
  }

  sx(value) { return this.left + (value - this.x[0]) / (this.x[1] - this.x[0]) * this.innerWidth; }

  sy(value) {
    const share = (value - this.y[0]) / (this.y[1] - this.y[0]);
    return 8 + (this.downward ? share : 1 - share) * this.innerHeight;
  }

  at(event) {
    const box = this.root.getBoundingClientRect();
    const sx = (event.clientX - box.left - this.left) / this.innerWidth;
    const sy = (event.clientY - box.top - 8) / this.innerHeight;
    const y = this.downward ? sy : 1 - sy;
    return { sx, sy, x: this.x[0] + sx * (this.x[1] - this.x[0]), y: this.y[0] + y * (this.y[1] - this.y[0]) };
  }

  paint() {
    const width = this.root.clientWidth;
    if (!width) return;
    this.innerWidth = Math.max(width - this.left - 10, 20);
    this.innerHeight = this.height - 48;
    this.root.replaceChildren();
    const clip = "clip-" + (this.id || (this.id = Plot.next++));
    svg("rect", { x: this.left, y: 8, width: this.innerWidth, height: this.innerHeight }, svg("clipPath", { id: clip }, this.root));
    const axes = svg("g", {}, this.root);
    this.body = svg("g", { "clip-path": `url(#${clip})` }, this.root);
    const bottom = 8 + this.innerHeight;
    for (const at of ticks(this.x[0], this.x[1], Math.max(2, Math.floor(this.innerWidth / 90)))) {
      svg("line", { class: "gridline", x1: this.sx(at), x2: this.sx(at), y1: 8, y2: bottom }, axes);
      const edge = this.sx(at) > this.left + this.innerWidth - 16;
      const text = svg("text", { x: this.sx(at) + (edge ? 8 : 0), y: bottom + 15, "text-anchor": edge ? "end" : "middle" }, axes);
      text.textContent = number(at);
    }
    for (const at of this.names ? [] : ticks(this.y[0], this.y[1], 5)) {
      svg("line", { class: "gridline", x1: this.left, x2: this.left + this.innerWidth, y1: this.sy(at), y2: this.sy(at) }, axes);
      const text = svg("text", { x: this.left - 5, y: this.sy(at) + 4, "text-anchor": "end" }, axes);
      text.textContent = number(at);
    }
    svg("path", { class: "axis", fill: "none", d: `M${this.left} 8V${bottom}H${this.left + this.innerWidth}` }, axes);
    const xLabel = svg("text", { x: this.left + this.innerWidth / 2, y: bottom + 32, "text-anchor": "middle" }, axes);
    xLabel.textContent = this.xLabel;
    const yLabel = svg("text", { transform: `translate(12 ${8 + this.innerHeight / 2}) rotate(-90)`, "text-anchor": "middle" }, axes);
    yLabel.textContent = this.yLabel;
    this.draw(this);
  }

  stepPath(at, values) {
    let d = "";
    at.forEach((x, i) => { d += (i ? "H" : "M") + this.sx(x).toFixed(2) + (i ? "V" : " ") + this.sy(values[i]).toFixed(2); });
    return d;
  }

  zoom(factor, x, y) {
    const range = (now, whole, middle) => {
      const size = Math.min(Math.max((now[1] - now[0]) * factor, (whole[1] - whole[0]) / 2000), whole[1] - whole[0]);
      const low = middle - (middle - now[0]) / (now[1] - now[0]) * size;
      const start = Math.min(Math.max(low, whole[0]), whole[1] - size);
      return [start, start + size];
    };
    this.x = range(this.x, this.whole.x, x === undefined ? (this.x[0] + this.x[1]) / 2 : x);
    if (this.zoomY) this.y = range(this.y, this.whole.y, y === undefined ? (this.y[0] + this.y[1]) / 2 : y);
    this.root.classList.toggle("zoomed", this.x[1] - this.x[0] < this.whole.x[1] - this.whole.x[0]);
    this.later();
  }

  pan(dx, dy) {
    const shift = (now, whole, by) => {
      const size = now[1] - now[0], start = Math.min(Math.max(now[0] + by * size, whole[0]), whole[1] - size);
      return [start, start + size];
    };
    this.x = shift(this.x, this.whole.x, dx);
    if (this.zoomY) this.y = shift(this.y, this.whole.y, this.downward ? dy : -dy);
    this.later();
  }

  reset() { this.x = this.whole.x.slice(); this.y = this.whole.y.slice(); this.root.classList.remove("zoomed"); this.later(); }

  wheel(event) {
    if (!event.ctrlKey && !event.metaKey) return; // a plain wheel scrolls the page
    event.preventDefault();
    const at = this.at(event);
    this.zoom(event.deltaY < 0 ? 0.8 : 1.25, at.x, at.y);
  }

  press(event) { this.drag = this.at(event); this.root.setPointerCapture(event.pointerId); }

  move(event) {
    const at = this.at(event);
    if (this.drag) {
      this.pan(this.drag.sx - at.sx, this.drag.sy - at.sy);
      this.drag = at;
      return;
    }
    const inside = at.sx >= 0 && at.sx <= 1 && at.sy >= 0 && at.sy <= 1;
    showTip(inside && this.hover ? this.hover(at.x, at.y, this) : null, event);
  }

  key(event) {
    const keys = {
      "+": () => this.zoom(0.7), "=": () => this.zoom(0.7), "-": () => this.zoom(1.4), "0": () => this.reset(),
      ArrowLeft: () => this.pan(-0.1, 0), ArrowRight: () => this.pan(0.1, 0),
      ArrowUp: () => this.pan(0, -0.1), ArrowDown: () => this.pan(0, 0.1), Escape: () => showTip(null),
    };
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
  }
}
Plot.next = 0;

function zoomButtons(holder, plot) {
  for (const [sign, name, act] of [["+", "zoom in", () => plot.zoom(0.6)], ["−", "zoom out", () => plot.zoom(1 / 0.6)], ["reset", "reset the zoom", () => plot.reset()]]) {
    const button = html("button", sign, holder);
    button.type = "button";
    button.setAttribute("aria-label", name);
    button.addEventListener("click", act);
  }
}
