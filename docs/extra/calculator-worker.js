// Python in a thread of its own, so that the page stays alive while a plan is made.
import { loadPyodide } from "../calculator/pyodide.mjs";

const fetched = async (url) => {
  const answer = await fetch(new URL(url, import.meta.url));
  if (!answer.ok) throw new Error(`${url}: ${answer.status}`);
  return answer;
};

const loaded = (async () => {
  const python = await loadPyodide({ indexURL: new URL("../calculator/", import.meta.url).href });
  python.unpackArchive(await (await fetched("../calculator/zerokit.zip")).arrayBuffer(), "zip", { extractDir: "/lib/zerokit" });
  python.runPython('import sys; sys.path.insert(0, "/lib/zerokit")');
  python.runPython(await (await fetched("calculator.py")).text());
  return python;
})();

onmessage = async ({ data: { id, name, given } }) => {
  try {
    const call = (await loaded).globals.get(name);
    postMessage({ id, answer: JSON.parse(given === undefined ? call() : call(JSON.stringify(given))) });
  } catch (error) {
    postMessage({ id, error: String(error) });
  }
};
