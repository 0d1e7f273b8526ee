"""One class per framework: move a batch, wait for the device, ask for its memory."""
