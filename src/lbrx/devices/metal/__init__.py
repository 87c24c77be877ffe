"""Metal: shaders on an Apple GPU, or the same shaders in an emulator on the CPU. `lbrx.metal` has the public names."""
