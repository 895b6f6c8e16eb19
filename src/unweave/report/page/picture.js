// The graph as a picture to copy: SVG or PNG, with the colours that the page has now.
const COPIED = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "stroke-linejoin", "opacity", "font-size", "font-weight", "font-family", "paint-order", "display"];

/** The drawing as a text that stands alone: styles of the page become attributes. */
function standalone(root) {
  const copy = root.cloneNode(true);
  const from = [root, ...root.querySelectorAll("*")], to = [copy, ...copy.querySelectorAll("*")];
  from.forEach((element, i) => {
    const style = getComputedStyle(element);
    to[i].removeAttribute("style");
    for (const name of COPIED) {
      const value = style.getPropertyValue(name);
      if (value) to[i].setAttribute(name, value);
    }
  });
  copy.setAttribute("xmlns", SVG);
  copy.prepend(svg("rect", {width: "100%", height: "100%", fill: colour("card")}));
  return new XMLSerializer().serializeToString(copy);
}

async function asPng(root) {
  const image = new Image(), scale = 2;
  image.src = URL.createObjectURL(new Blob([standalone(root)], {type: "image/svg+xml"}));
  await image.decode();
  const canvas = el("canvas", {width: scale * root.clientWidth, height: scale * root.clientHeight});
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(image.src);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

/** Copies where the browser lets a page do so, else saves a file. */
async function copyOrSave(button, make, name) {
  const blob = await make(), label = button.textContent;
  try {
    const text = blob.type !== "image/png";
    await (text ? navigator.clipboard.writeText(await blob.text()) : navigator.clipboard.write([new ClipboardItem({"image/png": blob})]));
    button.textContent = "Copied";
  } catch {
    const link = el("a", {href: URL.createObjectURL(blob), download: name});
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    button.textContent = "Saved";
  }
  setTimeout(() => { button.textContent = label; }, 2000);
}

function pictureButtons(host, graph) {
  const root = () => graph.querySelector("svg");
  const button = (label, make, name) => el("button", {type: "button", onclick: ({currentTarget}) => copyOrSave(currentTarget, make, name)}, label);
  host.replaceChildren(
    button("Copy SVG", async () => new Blob([standalone(root())], {type: "image/svg+xml"}), "circuit.svg"),
    button("Copy PNG", () => asPng(root()), "circuit.png"),
    button("Copy link", async () => new Blob([location.href], {type: "text/plain"}), "link.txt"));
}
