"""What a training would take on a device, from its operators and that device's ceilings."""
