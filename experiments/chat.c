/* chat.c - see chat.h. */
#include "chat.h"

#include <stdlib.h>
#include <string.h>

// clang-format off
static const chat_family families[] = { // the first match wins
    {.name = "chatml", .marks = {"<|im_start|>"}, .absent = "<|im_sep|>",
     .before_system = "<|im_start|>system\n", .after_system = "<|im_end|>\n",
     .before_user = "<|im_start|>user\n", .after_user = "<|im_end|>\n<|im_start|>assistant\n", .after_answer = "<|im_end|>\n"},
    {.name = "mistral-v7", .marks = {"[INST]", "[SYSTEM_PROMPT]"},
     .before_system = "[SYSTEM_PROMPT] ", .after_system = "[/SYSTEM_PROMPT]",
     .before_user = "[INST] ", .after_user = "[/INST]", .after_answer = "</s>"},
    {.name = "mistral-v1", .marks = {"' [INST] ' + system_message", " [INST]"},
     .before_user = " [INST] ", .after_user = " [/INST]", .after_answer = "</s>"},
    {.name = "mistral-v1", .marks = {"[AVAILABLE_TOOLS]", " [INST]"},
     .before_user = " [INST] ", .after_user = " [/INST]", .after_answer = "</s>"},
    {.name = "mistral-v3-tekken", .marks = {"[AVAILABLE_TOOLS]", "\"[INST]\""},
     .before_user = "[INST]", .after_user = "[/INST]", .after_answer = "</s>"},
    {.name = "mistral-v3", .marks = {"[INST]", "[AVAILABLE_TOOLS]"},
     .before_user = "[INST] ", .after_user = "[/INST]", .after_answer = "</s>"},
    {.name = "llama2", .marks = {"[INST]", "<<SYS>>", "bos_token + '[INST]"},
     .before_system = "[INST] <<SYS>>\n", .after_system = "\n<</SYS>>\n\n",
     .before_user = "[INST] ", .after_user = " [/INST]", .after_answer = " </s><s>"},
    {.name = "llama2", .marks = {"[INST]", "<<SYS>>"},
     .before_system = "[INST] <<SYS>>\n", .after_system = "\n<</SYS>>\n\n",
     .before_user = "[INST] ", .after_user = " [/INST]", .after_answer = " </s>"},
    {.name = "llama2", .marks = {"[INST]"},
     .before_user = "[INST] ", .after_user = " [/INST]", .after_answer = " </s>"},
    {.name = "phi3", .marks = {"<|assistant|>", "<|end|>"},
     .before_system = "<|system|>\n", .after_system = "<|end|>\n",
     .before_user = "<|user|>\n", .after_user = "<|end|>\n<|assistant|>\n", .after_answer = "<|end|>\n"},
    {.name = "zephyr", .marks = {"<|user|>", "<|endoftext|>"},
     .before_system = "<|system|>\n", .after_system = "<|endoftext|>\n",
     .before_user = "<|user|>\n", .after_user = "<|endoftext|>\n<|assistant|>\n", .after_answer = "<|endoftext|>\n"},
    {.name = "gemma", .marks = {"<start_of_turn>"},
     .before_user = "<start_of_turn>user\n", .after_user = "<end_of_turn>\n<start_of_turn>model\n", .after_answer = "<end_of_turn>\n"},
    {.name = "llama3", .marks = {"<|start_header_id|>", "<|end_header_id|>"},
     .before_system = "<|start_header_id|>system<|end_header_id|>\n\n", .after_system = "<|eot_id|>",
     .before_user = "<|start_header_id|>user<|end_header_id|>\n\n",
     .after_user = "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n", .after_answer = "<|eot_id|>"},
    {0}};
// clang-format on

const chat_family *chat_recognise(dw_str t) {
    for (const chat_family *f = families; f->name; f++) {
        bool all = t.ptr && !(f->absent && memmem(t.ptr, t.len, f->absent, strlen(f->absent)));
        for (int i = 0; i < 3 && f->marks[i]; i++) all = all && memmem(t.ptr, t.len, f->marks[i], strlen(f->marks[i]));
        if (all) return f;
    }
    return NULL;
}

char *chat_turn(const chat_family *f, const char *system, const char *user, bool first, dw_err *err) {
    if (!first || !system) return dw_format(err, "%s%s%s", f->before_user, user, f->after_user);
    if (!f->before_system) return dw_format(err, "%s%s\n\n%s%s", f->before_user, system, user, f->after_user);
    /* llama2 puts the system text inside the first instruction, which it has opened already */
    const bool nested = !strncmp(f->before_system, f->before_user, strlen(f->before_user));
    return dw_format(err, "%s%s%s%s%s%s", f->before_system, system, f->after_system, nested ? "" : f->before_user, user,
                     f->after_user);
}
