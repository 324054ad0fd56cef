// After the script of a picture on canvas, whose again() paints it in the page's present colours.
window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', again);
window.addEventListener('beforeprint', () => {
  document.documentElement.dataset.print = '1';
  again();
});
window.addEventListener('afterprint', () => {
  delete document.documentElement.dataset.print;
  again();
});
again();
