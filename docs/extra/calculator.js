// The page of docs/calculator.md: a form, whose answers come from the real planner in calculator-worker.js.
const form = document.querySelector("#calculator-form");
const shown = document.querySelector("#calculator-answer");
const status = document.querySelector("#calculator-status");
const worker = new Worker(new URL("calculator-worker.js", import.meta.url), { type: "module" });
const waiting = new Map();

worker.onmessage = ({ data: { id, answer, error } }) => {
  const { resolve, reject } = waiting.get(id);
  waiting.delete(id);
  if (error) reject(new Error(error));
  else resolve(answer);
};
worker.onerror = (event) => {
  for (const { reject } of waiting.values()) reject(new Error(event.message || "its parts cannot be loaded"));
};

const ask = (name, given) =>
  new Promise((resolve, reject) => {
    const id = crypto.getRandomValues(new Uint32Array(1))[0];
    waiting.set(id, { resolve, reject });
    worker.postMessage({ id, name, given });
  });

const element = (name, attributes = {}, ...inside) => {
  const made = document.createElementNS(
    ["svg", "circle", "polyline", "text", "line", "title"].includes(name) ? "http://www.w3.org/2000/svg" : "http://www.w3.org/1999/xhtml",
    name,
  );
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...inside);
  return made;
};

const gib = (bytes) => `${(bytes / 2 ** 30).toFixed(1)} GiB`;
const seconds = (value) => (value < 1 ? `${(value * 1000).toPrecision(3)} ms` : `${value.toPrecision(3)} s`);
const title = (plan) =>
  [
    plan.engine === "deepspeed" ? `ZeRO-${plan.zero_stage}` : plan.engine.toUpperCase(),
    `batch size ${plan.micro_batch} per GPU`,
    `${plan.activation_checkpointing.replace("none", "no")} checkpointing`,
    ...["offload_optimizer", "offload_param"].filter((key) => plan[key] && plan[key] !== "none").map((key) => key.replace("_", " ")),
  ].join(", ");

// Memory of the fullest GPU, by component, as a table with bars.
const memory = (plan) => {
  const rank = plan.estimate.per_rank.reduce((one, other) => (other.peak_allocated_bytes > one.peak_allocated_bytes ? other : one));
  const rows = Object.entries(rank.components).filter(([, bytes]) => bytes > 0).sort((one, other) => other[1] - one[1]);
  const most = rows[0][1];
  const table = element("table", {}, element("caption", {}, `Memory at the peak, ${gib(rank.peak_allocated_bytes)} in ${rank.peak_phase}`));
  for (const [name, bytes] of rows) {
    const bar = element("span", { class: "calculator-bar", style: `width: ${(100 * bytes) / most}%` });
    table.append(element("tr", {}, element("th", { scope: "row" }, name.replaceAll("_", " ")), element("td", {}, gib(bytes)), element("td", { "aria-hidden": "true", class: "calculator-bars" }, bar)));
  }
  return table;
};

// The plan (1), and every other one than which none is both faster and smaller, joined by a line.
const frontier = (facts) => {
  const known = [facts.chosen, ...facts.alternatives].filter((plan) => plan.estimate.step_seconds);
  const [time, size] = [(plan) => plan.estimate.step_seconds, (plan) => plan.estimate.min_vram_bytes];
  const beats = (one, other) => time(one) <= time(other) && size(one) <= size(other) && (time(one) < time(other) || size(one) < size(other));
  const best = known.filter((plan) => !known.some((other) => beats(other, plan))).sort((one, other) => time(one) - time(other));
  const plans = [known[0], ...best.filter((plan) => plan !== known[0])];
  if (plans.length < 2) return [];
  const place = (plan, value, low, high) => {
    const values = plans.map(value);
    return low + ((value(plan) - Math.min(...values)) / (Math.max(...values) - Math.min(...values) || 1)) * (high - low);
  };
  const point = (plan) => [place(plan, time, 70, 590), place(plan, size, 175, 50)];
  const drawn = element("svg", { viewBox: "0 0 640 220", role: "img", "aria-label": `Memory against time of ${plans.length} plans, listed below` });
  drawn.append(element("line", { x1: 40, y1: 190, x2: 620, y2: 190 }), element("line", { x1: 40, y1: 10, x2: 40, y2: 190 }));
  drawn.append(element("text", { x: 330, y: 214, "text-anchor": "middle" }, "seconds a step"), element("text", { x: 46, y: 14 }, "memory"));
  drawn.append(element("polyline", { points: best.map((plan) => point(plan).join()).join(" ") }));
  plans.forEach((plan, at) => {
    const [x, y] = point(plan);
    const dot = element("circle", { cx: x, cy: y, r: at ? 6 : 9, class: at ? "" : "chosen" }, element("title", {}, title(plan)));
    drawn.append(dot, element("text", { x: x, y: y - 13, "text-anchor": "middle" }, String(at + 1)));
  });
  const list = element("ol", {}, ...plans.map((plan) => element("li", {}, `${title(plan)}: ${gib(size(plan))}, ${seconds(time(plan))} a step`)));
  return [element("h3", {}, "The plan (1), and what needs less memory or less time"), drawn, list];
};

const files = (named) =>
  element(
    "ul",
    {},
    ...Object.entries(named).map(([path, text]) => {
      const url = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
      return element("li", {}, element("a", { href: url, download: path.split("/").pop() }, path));
    }),
  );

const block = (text) => element("pre", {}, element("code", { tabindex: "0" }, text));

const question = () => {
  const words = [];
  for (const [name, value] of new FormData(form)) {
    if (value.trim() && !["config", "more"].includes(name)) words.push(`--${name}`, value.trim());
  }
  const { config, more } = Object.fromEntries(new FormData(form));
  if (config.trim()) words.splice(words.indexOf("--model"), words.includes("--model") ? 2 : 0);
  return { words, more, config: config.trim() };
};

const answer = async () => {
  status.textContent = "planning …";
  shown.setAttribute("aria-busy", "true");
  const given = question();
  try {
    const began = performance.now();
    const found = await ask("plan", given);
    const [parts, drawn] = [[element("h2", {}, found.code ? "No plan" : "The plan")], element("div")];
    parts.push(block(found.code ? found.said : found.text), drawn);
    if (Object.keys(found.files).length) parts.push(element("h3", {}, "Files"), files(found.files));
    if (found.said && !found.code) parts.push(element("h3", {}, "Said beside it"), block(found.said));
    if (found.command) parts.push(element("h3", {}, "The same on your machine"), block(found.command));
    shown.replaceChildren(...parts);
    status.textContent = `answered in ${((performance.now() - began) / 1000).toFixed(1)} s`;
    const link = new URLSearchParams(new FormData(form));
    history.replaceState(null, "", `#${link}`);
    const facts = found.code ? null : await ask("facts", found.words);
    if (facts) drawn.append(memory(facts.chosen), ...frontier(facts)); // of a later question: nobody sees it
  } catch (error) {
    status.textContent = `The planner failed: ${error.message}`;
  }
  shown.removeAttribute("aria-busy");
};

form.addEventListener("submit", (event) => {
  event.preventDefault();
  answer();
});

const asked = new URLSearchParams(location.hash.slice(1));
for (const [name, value] of asked) if (form.elements[name]) form.elements[name].value = value;

ask("names").then(
  ({ models, gpus }) => {
    document.querySelector("#calculator-models").append(...models.map((name) => element("option", { value: name })));
    document.querySelector("#calculator-gpus").append(...gpus.map((name) => element("option", { value: name })));
    status.textContent = "ready";
    form.querySelector("button").disabled = false;
    if (asked.size) answer();
  },
  (error) => {
    status.textContent = `The planner could not be loaded: ${error.message}`;
  },
);
