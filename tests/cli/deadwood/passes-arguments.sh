# Arguments, status and output of the program are its own.
deadwood synth --version
deadwood synth --shape 'no such'
