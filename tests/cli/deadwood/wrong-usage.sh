# Wrong usage is exit status 2, one line that points to --help, and nothing done.  A row: words, command.
deadwood synth --shape tiny-llama --type F32 -o m.gguf -q
head -c 4000 "$ROOT/README.md" >text.txt
mkdir folder
bad=0
wrong() {
    local words=$1 status=0
    shift
    deadwood "$@" >out 2>err </dev/null || status=$?
    if [ "$status" != 2 ] || [ -s out ] || [ "$(wc -l <err)" != 1 ] || ! grep -q "^deadwood-$1: .*; see 'deadwood-$1 --help'\$" err ||
        ! grep -qF -- "$words" err || [ "$(ls)" != "$before" ]; then
        echo "exit status $status, wanted 2 and '$words': $*"
        cat out err
        ls
        bad=1
    fi
}
: >out >err
before=$(ls)

wrong 'give a prompt'              generate -m m.gguf
wrong 'is empty'                   generate -m m.gguf -p ''
wrong 'not with both'              generate -m m.gguf -p a -f text.txt
wrong 'not from -f'                generate -m m.gguf --chat -f text.txt
wrong 'leave it out with --chat'   generate -m m.gguf --chat --echo
wrong 'give --chat too'            generate -m m.gguf -p a --system b
wrong "unknown option '-ngl': the CPU computes all layers" generate -m m.gguf -p a -ngl 99
wrong "did you mean '-m m.gguf'?"  generate m.gguf
wrong 'give MODEL without an option' shrink -m m.gguf
wrong 'add --patience 0, and --activation relu' heal -m m.gguf -T m.gguf -f text.txt -o made --tokens 9 --sparsity 1
wrong "did you mean '--temp'?"     generate -m m.gguf -p a -temp 0
wrong "did you mean '--ctx'?"      generate -m m.gguf -p a --ctx-size 9
wrong "did you mean '--text'?"     generate -m m.gguf --file text.txt
wrong "did you mean '--import-imatrix'?" collect -m m.gguf --imatrix text.txt
wrong "did you mean '--stats'?"    requant -m m.gguf -o made --imatrix text.txt
wrong "did you mean '--lossy-twice'?" requant -m m.gguf -o made --type Q4_0 --allow-requantize
wrong "did you mean '--tensor'?"   requant -m m.gguf -o made --type Q4_0 --tensor-type output=Q8_0
wrong 'score --base FILE compares' score -m m.gguf -f text.txt --kl-divergence-base made
wrong "give --mixture Q4_K_M"      requant -m m.gguf -o made --type Q4_K_M
wrong 'one checkpoint folder'      convert folder folder -o made
wrong 'is missing'                 convert "$ROOT/experiments/mini"
wrong 'needs statistics'           rank -m m.gguf --metric energy --rate 0.5 -o made
wrong 'needs statistics'           rank -m m.gguf --metric weight --drop-layers 1 -o made
wrong 'not both'                   rank -m m.gguf --metric weight --rate 0.5 --bytes 1MB -o made
wrong 'do not compare'             rank -m m.gguf --metric weight --rate 0.5 --allocate global -o made
wrong 'nothing to read'            collect -m m.gguf -o made
wrong 'nothing to write'           collect -m m.gguf -f text.txt
wrong 'nothing left'               collect -m m.gguf -f text.txt -c 64 --skip 64 -o made
wrong 'histograms would be empty'  collect -m m.gguf -f text.txt -c 64 --skip 4 --hist-every 64 -o made
wrong 'belong together'            cut -m m.gguf -p text.txt -o made --hf folder
wrong 'give --down-type too'       cut -m m.gguf -p text.txt -o made --source m.gguf
wrong 'for --repair lsq --sequential' cut -m m.gguf -p text.txt -o made --repair lsq -s text.txt --gap 0.9
wrong 'for --repair lsq --sequential' cut -m m.gguf -p text.txt -o made --repair lsq -s text.txt --windows 2
wrong 'for --repair lsq --sequential' cut -m m.gguf -p text.txt -o made --repair lsq -s text.txt -c 100
wrong 'targets dense and blend'    cut -m m.gguf -p text.txt -o made --repair lsq --sequential -f text.txt --target own --gap 0.9
wrong '--damp is for'              cut -m m.gguf -p text.txt -o made --damp 0.5
wrong '--damp is for'              cut -m m.gguf -p text.txt -o made --damp 0.01
wrong 'for --repair lsq --sequential' cut -m m.gguf -p text.txt -o made -c 512
wrong 'not both'                   heal -m m.gguf -T m.gguf -f text.txt -o made --tokens 1000 --minutes 1
wrong 'for --train lora'           heal -m m.gguf -T m.gguf -f text.txt -o made --tokens 1000 --rank 4
wrong 'for --train lora'           heal -m m.gguf -T m.gguf -f text.txt -o made --tokens 1000 --rank 4 --train down
wrong 'for --train lora'           heal -m m.gguf -T m.gguf -f text.txt -o made --tokens 1000 --rank 16
wrong 'by --cold-rate'             requant -m m.gguf -o made --type Q8_0 --metric energy
wrong 'would open no group'        train -m m.gguf -x text.txt -o made --mass 0
wrong 'give one of --mass'         train -m m.gguf -x text.txt -o made --recall 0.9 --activity 0.1
wrong 'give one of --mass'         train -m m.gguf -x text.txt -o made --recall 0.9 --mass 0.5
wrong 'give one of'                requant -m m.gguf -o made
wrong 'needs --cold-type'          requant -m m.gguf -o made --cold-rate 0.5
wrong 'or 128, not of 1; give --group' gate -m m.gguf -s text.txt -o made --rule group-max --group 1 --activity 0.5
wrong 'of 1, not of 32'            gate -m m.gguf -s text.txt -o made --rule cats --group 32 --activity 0.5
wrong 'begins below 1'             collect -m m.gguf -f text.txt -o made --windows 0-2
wrong 'give a model'               score -f text.txt
wrong 'of one model'               score -m m.gguf m.gguf -f text.txt --store made
wrong '--speed-prefill asks for speed' score -m m.gguf -f text.txt --no-speed --speed-prefill 100
wrong '--depth asks for speed'     score -m m.gguf -f text.txt --no-speed --depth 0
wrong 'take every metric'          rank -m m.gguf --compare --metric weight --rate 0.5
wrong '--model is given twice, and it takes one value' generate -m m.gguf -m m.gguf -p a
wrong "'1.5e0' is not a whole number" trace -m m.gguf -f text.txt -o made --tokens 1.5e0
wrong 'no list of'                 score -m m.gguf --speed-only --depth 0,0
wrong '1 and 256'                  score -m m.gguf --speed-only --sequences 0
wrong 'is missing'                 inspect
wrong 'FILE: the name is empty'   inspect ''
wrong '--text: the name is empty' score -m m.gguf -f ''
wrong 'give one file'              inspect m.gguf m.gguf
wrong 'none of decode'             versus -m m.gguf --what encode
wrong 'no list of'                 versus -m m.gguf --depth 1,x --stock folder
wrong 'not one of avx2, avx512, amx' versus -m m.gguf --level avx9 --stock folder
wrong 'not one of f16, f32'        versus -m m.gguf --kv q8_0 --stock folder
wrong 'has only'                   synth --shape tiny-llama --layers 99 -o made
wrong 'needs -o'                   versus -m m.gguf --quantize Q4_0 --stock folder

# Binary output is not for the terminal, nor for a file called '-'.
wrong 'not go to standard output'  convert "$ROOT/experiments/mini" -o -
wrong 'not go to standard output'  synth --shape tiny-llama -o -
wrong 'not go to standard output'  collect -m m.gguf -f text.txt -o -
wrong 'not go to standard output'  collect -m m.gguf -f text.txt -o made --export-imatrix -
wrong 'not go to standard output'  cut -m m.gguf -p text.txt -o -
wrong 'not go to standard output'  requant -m m.gguf --type Q4_0 -o -
wrong 'not go to standard output'  score -m m.gguf -f text.txt --store -
exit $bad
