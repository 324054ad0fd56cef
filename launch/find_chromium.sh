#!/usr/bin/env bash
# Is there a Chromium for the tests of the HTML reports? Exit 1, with one line on what to install, if there is none.
for name in ${LVCG_CHROMIUM:+"$LVCG_CHROMIUM"} chromium chromium-browser google-chrome google-chrome-stable; do
  command -v "$name" > /dev/null && exit 0
done
echo "no Chromium: the tests of the HTML reports will fail; install the package 'chromium' (Debian, Ubuntu: sudo apt-get" \
  "install chromium), or set LVCG_CHROMIUM=/path/to/chrome" >&2
exit 1
