"""Models and quantized files pushed to the Hugging Face hub."""
