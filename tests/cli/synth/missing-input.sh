deadwood synth --shape mini --vocab no/such/folder -o m.gguf
