// Parts of drawings that are kept and changed, not drawn anew: nodes are found by a key.
const SPACE = "http://www.w3.org/2000/svg";

// A drawing that fills its place, with one unit for each pixel of its width. What is put into a later
// layer lies above what is put into an earlier one, whenever it comes.
export function canvas(place, height, label, names = ["all"]) {
  let svg = place.firstElementChild;
  if (!svg) {
    svg = document.createElementNS(SPACE, "svg");
    svg.setAttribute("role", "img");
    svg.layers = names.map(() => {
      const layer = document.createElementNS(SPACE, "g");
      layer.kept = new Map();
      svg.append(layer);
      return layer;
    });
    place.append(svg);
  }
  const width = Math.max(place.clientWidth, 240);
  set(svg, { viewBox: `0 0 ${width} ${height}`, height, "aria-label": label });
  for (const layer of svg.layers) layer.used = new Set();
  const layers = Object.fromEntries(names.map((name, number) => [name, svg.layers[number]]));
  return { svg, layers, width, height };
}

// The element of a key, made if need be, with these attributes; text is its content.
export function put(layer, key, tag, attributes, text = null, title = null) {
  let element = layer.kept.get(key);
  if (!element) {
    element = document.createElementNS(SPACE, tag);
    layer.kept.set(key, element);
    layer.append(element);
  }
  layer.used.add(key);
  set(element, attributes);
  if (text !== null && element.firstChild?.data !== text) {
    if (element.firstChild) element.firstChild.data = text;
    else element.append(text);
  }
  if (title !== null) {
    let child = element.querySelector("title");
    if (!child) {
      child = document.createElementNS(SPACE, "title");
      element.append(child);
    }
    if (child.textContent !== title) child.textContent = title;
  }
  return element;
}

// Take away what was not put this time.
export function sweep(...layers) {
  for (const layer of layers) {
    for (const [key, element] of layer.kept) {
      if (layer.used.has(key)) continue;
      element.remove();
      layer.kept.delete(key);
    }
  }
}

export function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    const words = typeof value === "number" ? String(Math.round(value * 10) / 10) : value;
    if (element.getAttribute(name) !== words) element.setAttribute(name, words);
  }
}

// A moment of the run as minutes and seconds.
export function minutes(time) {
  const whole = Math.floor(Math.abs(time) + 1e-6);
  return `${time < -1e-6 ? "-" : ""}${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}

// How long something takes.
export function lasting(time) {
  return time < 10 ? `${Number(time.toFixed(1))} s` : time < 60 ? `${Math.round(time)} s` : `${minutes(time)} min`;
}

export function bytes(count) {
  const size = Math.abs(count);
  if (size < 1024) return `${count} B`;
  if (size < 1 << 20) return `${(count / 1024).toFixed(1)} KiB`;
  return `${(count / (1 << 20)).toFixed(2)} MiB`;
}
