// Shows the HTML part of an e-mail. This document has an origin of its own, reads nothing of the page around it, and its
// policy lets nothing of an e-mail run or load.
addEventListener("message", ({ source, data }) => {
  if (source !== parent) return;
  document.documentElement.innerHTML = data;
  // Links lead out of the frame.
  const base = document.createElement("base");
  base.target = "_blank";
  document.head.append(base);
});
parent.postMessage("ready", "*");
