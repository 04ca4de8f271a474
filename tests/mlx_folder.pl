#!/usr/bin/perl
# mlx_folder.pl - writes a checkpoint folder as MLX's converter does for 4 bits, with random weights.
#
#     perl tests/mlx_folder.pl FOLDER TOKENIZER-FOLDER [WIDTH]
#
# A llama of two layers, 128 values and WIDTH neurons (352: no multiple of 64).  Matrices are U32 words of eight codes,
# with a scale and a bias in F16 for each group of 32 values of a row: w = scale * code + bias.
use strict;
use warnings;

my ($folder, $from, $width) = @ARGV;
$width ||= 352;
my ($layers, $embd, $heads, $kv, $vocab, $group) = (2, 128, 4, 2, 16384, 32);
my $head_dim = $embd / $heads;
mkdir $folder;
srand 1;

sub f16 { # positive or negative normal numbers
    my $v = shift;
    my $sign = $v < 0 ? 0x8000 : 0;
    my $e = int(log(abs $v) / log 2);
    $e-- while 2**$e > abs $v;
    return pack 'v', $sign | ($e + 15) << 10 | int((abs($v) / 2**$e - 1) * 1024);
}

my ($data, @entries) = ('');
sub add {
    my ($name, $dtype, $shape, $bytes) = @_;
    push @entries, sprintf '"%s":{"dtype":"%s","shape":[%s],"data_offsets":[%d,%d]}', $name, $dtype,
        join(',', @$shape), length $data, length($data) + length $bytes;
    $data .= $bytes;
}

my @word = map { pack 'V', int rand 2**32 } 1 .. 8191; # a prime number of them, so that rows differ
sub matrix {
    my ($module, $rows, $cols) = @_;
    my $words = $rows * $cols / 8;
    my $codes = join('', @word) x (1 + int($words / @word));
    add("$module.weight", 'U32', [$rows, $cols / 8], substr $codes, 0, 4 * $words);
    my $groups = $rows * $cols / $group;
    my $step = 0.35 / sqrt $cols;
    my @scale = map { f16($step * (0.5 + rand)) } 1 .. 61;
    add("$module.scales", 'F16', [$rows, $cols / $group], substr join('', @scale) x (1 + int($groups / 61)), 0, 2 * $groups);
    add("$module.biases", 'F16', [$rows, $cols / $group], f16(-7.5 * $step) x $groups);
}
sub vector { add($_[0], 'F16', [$embd], f16(1) x $embd) }

matrix('model.embed_tokens', $vocab, $embd);
vector('model.norm.weight');
for my $l (map { "model.layers.$_" } 0 .. $layers - 1) {
    matrix("$l.self_attn.q_proj", $embd, $embd);
    matrix("$l.self_attn.k_proj", $kv * $head_dim, $embd);
    matrix("$l.self_attn.v_proj", $kv * $head_dim, $embd);
    matrix("$l.self_attn.o_proj", $embd, $embd);
    matrix("$l.mlp.$_", $width, $embd) for qw(gate_proj up_proj);
    matrix("$l.mlp.down_proj", $embd, $width);
    vector("$l.input_layernorm.weight");
    vector("$l.post_attention_layernorm.weight");
}

sub save { my ($name, $bytes) = @_; open my $f, '>:raw', "$folder/$name" or die "$folder/$name: $!"; print $f $bytes; close $f or die $! }
my $json = '{' . join(',', @entries) . '}';
save('model.safetensors', pack('Q<', length $json) . $json . $data);
save('config.json', <<JSON);
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": $embd, "num_hidden_layers": $layers,
 "intermediate_size": $width, "num_attention_heads": $heads, "num_key_value_heads": $kv, "vocab_size": $vocab,
 "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": true,
 "quantization": {"group_size": $group, "bits": 4}}
JSON
for my $name (qw(tokenizer.json tokenizer_config.json)) {
    open my $f, '<:raw', "$from/$name" or die "$from/$name: $!";
    local $/;
    save($name, <$f>);
}
