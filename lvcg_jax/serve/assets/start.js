// A file that is dropped or chosen is sent at once; the browser then shows the answer in this place.
"use strict";

const form = document.getElementById("form");
const zone = document.getElementById("zone");
const input = document.getElementById("file");
const state = document.getElementById("state");
const mistake = document.getElementById("mistake");
const idle = state.textContent;
document.getElementById("address").textContent = new URL(".", location.href).href;

function show(words) {
  mistake.textContent = words;
  mistake.hidden = !words;
}

function send() {
  const largest = Number(form.dataset.largest);
  const size = [...input.files].reduce((sum, file) => sum + file.size, 0);
  if (!input.files.length) return;
  if (size > largest) {
    show(`The upload has ${(size / 2 ** 20).toFixed(0)} MiB, more than ${largest / 2 ** 20}.`);
    form.reset();
    return;
  }
  show("");
  zone.classList.add("busy");
  state.textContent = "Reading the ECG …";
  form.submit();
}

input.addEventListener("change", send);
for (const kind of ["dragover", "dragleave", "drop"]) {
  // the whole window, so that a file that misses the zone is not opened by the browser
  window.addEventListener(kind, (event) => {
    event.preventDefault();
    zone.classList.toggle("over", kind === "dragover");
    if (kind === "drop" && event.dataTransfer.files.length && !zone.classList.contains("busy")) {
      input.files = event.dataTransfer.files;
      send();
    }
  });
}

// back from the answer
window.addEventListener("pageshow", () => {
  zone.classList.remove("busy");
  state.textContent = idle;
  input.value = "";
});
