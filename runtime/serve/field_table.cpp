#include "runtime/serve/field_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "dspack_version.h"
#include "format/base/foreign_text.h"
#include "runtime/text/json_fields.h"
#include "runtime/text/schema_keywords.h"
#include "runtime/text/string_formats.h"

namespace dspack::runtime {
namespace {

constexpr size_t kMaxRemarks = 8;  // per request

// Sets of APIs: OpenAI's older ones, all of OpenAI's, all.
constexpr uint8_t kOlder = kChat | kCompletions;
constexpr uint8_t kOpenAi = kOlder | kResponses;
constexpr uint8_t kAll = kOpenAi | kMessages;

using Treatment = RequestField::Treatment;

// Predicates for values that ask for nothing.
template <int kNumber>
bool is_number(const OrderedJson& value, const OrderedJson& /*request*/) {
  return value.is_number() && value.get<double>() == kNumber;
}
template <int kNumber>
bool is_at_most(const OrderedJson& value, const OrderedJson& /*request*/) {
  return value.is_number() && value.get<double>() <= kNumber;
}
bool is_false(const OrderedJson& value, const OrderedJson& /*request*/) {
  return value.is_boolean() && !value.get<bool>();
}
bool is_true(const OrderedJson& value, const OrderedJson& /*request*/) {
  return value.is_boolean() && value.get<bool>();
}
bool is_empty(const OrderedJson& value, const OrderedJson& /*request*/) {
  return value.is_string() ? value.get_ref<const std::string&>().empty() : value.is_structured() && value.empty();
}
bool calls_no_function(const OrderedJson& value, const OrderedJson& /*request*/) {
  return value == "none" || value == "auto";
}
bool is_text_alone(const OrderedJson& value, const OrderedJson& /*request*/) {
  return value == OrderedJson::array({"text"});
}
bool includes_no_logprobs(const OrderedJson& value, const OrderedJson& /*request*/) {
  return value.is_array() && std::ranges::find(value, OrderedJson("message.output_text.logprobs")) == value.end();
}
bool divides_reasoning(const OrderedJson& value, const OrderedJson& /*request*/) {
  return value == "auto" || value == "deepseek";
}
/// The repetition penalty's window is the whole context, or there is no such penalty.
bool is_whole_window(const OrderedJson& value, const OrderedJson& request) {
  const JsonFields fields(request);
  const bool has_penalty = fields.find("repeat_penalty") != nullptr || fields.find("repetition_penalty") != nullptr;
  return !has_penalty || (value.is_number() && value.get<double>() == -1);
}

constexpr auto kObeyed = Treatment::obeyed;
constexpr auto kHarmless = Treatment::harmless;
constexpr auto kRefused = Treatment::refused;

const RequestField kFields[] = {
    // The prompt.
    {"messages", kChat | kMessages, kObeyed, R"([{"role": "user", "content": "Hello"}])", "the conversation"},
    {"system", kMessages, kObeyed, R"("Be brief.")", "in front of the conversation"},
    {"instructions", kResponses, kObeyed, R"("Be brief.")", "in front of the conversation"},
    {"input", kResponses, kObeyed, R"("Hello")", "the whole conversation: nothing is kept"},
    {"prompt", kCompletions, kObeyed, R"("Once upon a time")",
     "the text that is continued, or its token ids, or a list of either"},
    {"model", kAll, kObeyed, R"("any")", "any name; the answer repeats it"},
    {"continue_final_message", kChat, kObeyed, "true",
     "the last message, an assistant's, is continued, and the answer holds what follows; so it is where the message "
     "has "
     "`prefix`, and in the Messages API"},
    {"add_generation_prompt", kChat, kObeyed, "false", "whether the template writes the beginning of an answer"},
    {"echo", kCompletions, kObeyed, "true", "the prompt comes first"},
    {"n", kOlder, kObeyed, "2",
     "so many answers to each prompt, the first as without it, the others with seeds that follow; the prompt is read "
     "once"},
    {"n_cmpl", kOlder, kObeyed, "2", "the same as `n`"},
    // Length.
    {"max_tokens", kOlder | kMessages, kObeyed, "3",
     "without it (or with -1) an answer ends by itself or with the context; 16 in /v1/completions, where 0 gives none"},
    {"max_completion_tokens", kOlder, kObeyed, "3", "the same as `max_tokens`"},
    {"n_predict", kOlder, kObeyed, "3", "the same as `max_tokens`"},
    {"max_output_tokens", kResponses, kObeyed, "3", "as `max_tokens`"},
    {"stop", kOpenAi, kObeyed, R"(["."])", "texts that end the answer, and do not belong to it"},
    {"stop_sequences", kMessages, kObeyed, R"(["."])", "as `stop`"},
    {"stop_token_ids", kAll, kObeyed, "[5]", "tokens that end the answer, and do not belong to it"},
    {"min_tokens", kAll, kObeyed, "12", "before so many, nothing ends the answer but the context"},
    {"ignore_eos", kAll, kObeyed, "true", "the model's own end tokens do not end the answer"},
    // Sampling.
    {"temperature", kAll, kObeyed, "1", "what a request leaves out is as the options say, else generation_config.json"},
    {"top_p", kAll, kObeyed, "0.1", ""},
    {"top_k", kAll, kObeyed, "1", "0 or -1: all"},
    {"min_p", kAll, kObeyed, "1", ""},
    {"repetition_penalty", kAll, kObeyed, "5", "over the whole context"},
    {"repeat_penalty", kAll, kObeyed, "5", "the same as `repetition_penalty`"},
    {"presence_penalty", kAll, kObeyed, "2", ""},
    {"frequency_penalty", kAll, kObeyed, "2", ""},
    {"logit_bias", kAll, kObeyed, R"({"1": -100})", "of up to 1,024 tokens, by id"},
    {"seed", kAll, kObeyed, "7",
     "a seed repeats its text; without one, or with -1, one is drawn; numbers beyond 64 bits count modulo 2^64"},
    // Delivery.
    {"stream", kAll, kObeyed, "true",
     "while a prompt is read, a comment says every five seconds how far: tokens, and the layer where the pass is"},
    {"stream_options", kOlder, kObeyed, R"({"include_usage": true})", "`include_usage`"},
    {"stream_options", kResponses, kHarmless, R"({"include_obfuscation": false})", "nothing is obfuscated"},
    {"logprobs", kChat, kObeyed, "true", "before temperature and the like"},
    {"top_logprobs", kChat, kObeyed, "2", "0 to 20 of each token, with `logprobs`"},
    {"logprobs", kCompletions, kObeyed, "2",
     "0 to 20 of each token, before temperature and the like; with `echo`, of the prompt's tokens as well"},
    // Tools and forms of answers.
    {"tools", kChat | kResponses | kMessages, kObeyed, "[]",
     "functions, as the template prints them; tools that a service would run, and those of type `custom`, are left "
     "out, "
     "which the log says"},
    {"tool_choice", kChat | kResponses | kMessages, kObeyed, R"("none")", ""},
    {"parallel_tool_calls", kChat | kResponses, kObeyed, "false", ""},
    {"response_format", kOlder, kObeyed, R"({"type": "json_object"})", "`text`, `json_object`, `json_schema`"},
    {"text", kResponses, kObeyed, R"({"format": {"type": "json_object"}})", "`format`, as `response_format`"},
    {"output_config", kMessages, kObeyed, R"({"format": {"type": "json_schema", "schema": {"type": "object"}}})",
     "`format`, as `response_format`; `effort` goes to the template as `reasoning_effort`"},
    {"output_format", kMessages, kObeyed, R"({"type": "json_schema", "schema": {"type": "object"}})",
     "an older name of `output_config.format`"},
    {"json_schema", kOpenAi, kObeyed, R"({"type": "object"})", "a schema, or its text, as in `response_format`"},
    {"guided_json", kOpenAi, kObeyed, R"({"type": "object"})", "the same as `json_schema`"},
    {"structured_outputs", kOpenAi, kObeyed, R"({"json": {"type": "object"}})",
     "`json`, the same as `json_schema`, and `json_object`"},
    // Reasoning.
    {"chat_template_kwargs", kChat, kObeyed, R"({"thinking": true})", "arguments of the template, up to 256"},
    {"reasoning_effort", kChat, kObeyed, R"("high")",
     "an argument of the template; `none` and `minimal` turn reasoning off, the others on, unless the "
     "template knows efforts itself (DeepSeek-V4's)"},
    {"reasoning", kResponses, kObeyed, R"({"effort": "high"})", "`effort`, as `reasoning_effort`"},
    {"reasoning", kChat, kObeyed, R"({"effort": "high"})", "`effort`, as `reasoning_effort`; `enabled`"},
    {"thinking", kChat | kMessages, kObeyed, R"({"type": "enabled"})",
     "`type`: `enabled` and `disabled` are the template's switch, `adaptive` turns it on; reasoning is not held to "
     "`budget_tokens`"},
    {"enable_thinking", kChat, kObeyed, "true", "the template's switch"},

    // Client names and a service's operation.
    {"user", kOpenAi, kHarmless, R"("somebody")", "nobody is counted or watched"},
    {"safety_identifier", kChat | kResponses, kHarmless, R"("somebody")", "nobody is counted or watched"},
    {"user_profile_id", kMessages, kHarmless, R"("somebody")", "nobody is counted or watched"},
    {"workspace_id", kMessages, kHarmless, R"("a")", "nobody is counted or watched"},
    {"metadata", kChat | kResponses | kMessages, kHarmless, R"({"a": "b"})", "nothing is kept"},
    {"store", kChat | kResponses, kHarmless, "true", "nothing is kept"},
    {"request_id", kOpenAi, kHarmless, R"("a")", "answers have ids of their own"},
    {"rid", kOlder, kHarmless, R"("a")", "answers have ids of their own"},
    {"session_id", kOlder, kHarmless, R"("a")", "what prompts have in common is found without it"},
    {"extra_key", kOlder, kHarmless, R"("a")", "nothing is counted by it"},
    {"custom_labels", kOlder, kHarmless, R"({"a": "b"})", "nothing is counted by it"},
    {"service_tier", kChat | kResponses | kMessages, kHarmless, R"("auto")", "requests are taken as they come"},
    {"priority", kOpenAi, kHarmless, "1", "requests are taken as they come"},
    {"speed", kMessages, kHarmless, R"("fast")", "requests are taken as they come"},
    {"inference_geo", kMessages, kHarmless, R"("eu")", "the answer is made on this machine"},
    {"billing_policy", kMessages, kHarmless, R"({"type": "a"})", "nothing is paid for"},
    {"fallback_credit_token", kMessages, kHarmless, R"("a")", "nothing is paid for"},
    {"fallbacks", kMessages, kHarmless, R"([{"model": "a"}])", "there is one model"},
    {"diagnostics", kMessages, kHarmless, R"({"previous_message_id": "a"})", "`usage` has what was found in a cache"},
    {"anthropic_version", kMessages, kHarmless, R"("2023-06-01")", "there is one version"},
    {"anthropic_beta", kMessages, kHarmless, R"(["a"])", "there is one version"},
    {"betas", kMessages, kHarmless, R"(["a"])", "there is one version"},
    {"max_tool_calls", kResponses, kHarmless, "3", "no tool is run here"},
    {"data_parallel_rank", kOlder, kHarmless, "0", "there is one model"},
    {"routed_dp_rank", kOlder, kHarmless, "0", "there is one model"},
    {"disagg_prefill_dp_rank", kOlder, kHarmless, "0", "there is one model"},
    // Caches and speed, which change no answer.
    {"cache_control", kMessages, kHarmless, R"({"type": "ephemeral"})", "prompts are kept without it"},
    {"prompt_cache_key", kChat | kResponses, kHarmless, R"("a")", "prompts are kept without it"},
    {"prompt_cache_options", kChat | kResponses, kHarmless, R"({"mode": "implicit"})", "prompts are kept without it"},
    {"prompt_cache_retention", kChat | kResponses, kHarmless, R"("24h")", "`--cache-ram` and `--cache-disk` say it"},
    {"cache_prompt", kOlder, kHarmless, "false", "a kept prompt gives the same answer"},
    {"n_cache_reuse", kOlder, kHarmless, "256", "a kept prompt gives the same answer"},
    {"id_slot", kOlder, kHarmless, "0", "the server chooses the place"},
    {"prediction", kChat, kHarmless, R"({"type": "content", "content": "a"})", "drafts come from the MTP module"},
    {"ngram_corpus_id", kOlder, kHarmless, R"("a")", "drafts come from the MTP module"},
    {"speculative.n_max", kOlder, kHarmless, "4", "`--mtp` says it"},
    {"speculative.n_min", kOlder, kHarmless, "0", "`--mtp` says it"},
    {"speculative.p_min", kOlder, kHarmless, "0.5", "`--mtp` says it"},
    {"backend_sampling", kOlder, kHarmless, "true", "tokens are the same wherever they are chosen"},
    {"guided_decoding_backend", kOlder, kHarmless, R"("xgrammar")", "there is one"},
    {"length_penalty", kOlder, kHarmless, "2", "of beams, which are refused"},
    {"spaces_between_special_tokens", kOlder, kHarmless, "false", "special tokens are not shown"},
    {"stream_interval", kOlder, kHarmless, "4", "each token is sent as it comes"},
    {"sse_ping_interval", kOlder, kHarmless, "30", "a silent stream is kept alive every five seconds"},
    {"return_progress", kOlder, kHarmless, "true", "a comment of the stream tells it"},
    {"timings_per_token", kOlder, kHarmless, "true", "the end of the answer has them"},
    {"verbose", kOlder, kHarmless, "true", "`/props` has the settings"},
    {"return_token_offsets", kOlder, kHarmless, "true", "of other paths"},
    {"return_mm_kwargs", kOlder, kHarmless, "true", "of other paths"},
    {"routed_experts_prompt_start", kOlder, kHarmless, "1", "without `return_routed_experts`"},
    {"routed_experts_start_len", kOlder, kHarmless, "1", "without `return_routed_experts`"},
    {"verbosity", kChat, kHarmless, R"("low")", "a wish that no template of these models reads"},
    // Too long a prompt is refused; nothing is shortened.
    {"truncation", kResponses, kHarmless, R"("auto")", "a prompt that is too long is refused by name"},
    {"context_management", kResponses | kMessages, kHarmless, R"({"edits": []})",
     "a prompt that is too long is refused by name"},
    {"compaction", kMessages, kHarmless, R"({"type": "a"})", "a prompt that is too long is refused by name"},
    {"truncation_side", kOlder, kHarmless, R"("left")", "without `truncate_prompt_tokens`"},
    {"n_keep", kOlder, kHarmless, "5", "a context is never shifted"},
    {"n_discard", kOlder, kHarmless, "5", "a context is never shifted"},
    // Parameters of samplers that are off.
    {"dynatemp_exponent", kOlder, kHarmless, "2", "without `dynatemp_range`"},
    {"dry_base", kOlder, kHarmless, "1.75", "without `dry_multiplier`"},
    {"dry_allowed_length", kOlder, kHarmless, "2", "without `dry_multiplier`"},
    {"dry_penalty_last_n", kOlder, kHarmless, "64", "without `dry_multiplier`"},
    {"dry_sequence_breakers", kOlder, kHarmless, R"([":"])", "without `dry_multiplier`"},
    {"xtc_threshold", kOlder, kHarmless, "0.1", "without `xtc_probability`"},
    {"mirostat_tau", kOlder, kHarmless, "5", "without `mirostat`"},
    {"mirostat_eta", kOlder, kHarmless, "0.1", "without `mirostat`"},
    {"adaptive_decay", kOlder, kHarmless, "0.5", "without `adaptive_target`"},
    {"grammar_lazy", kOlder, kHarmless, "true", "without `grammar`"},
    {"grammar_triggers", kOlder, kHarmless, "[]", "without `grammar`"},
    {"preserved_tokens", kOlder, kHarmless, "[]", "without `grammar`"},
    {"reasoning_control", kOlder, kHarmless, "true", "without `reasoning_budget_tokens`"},
    {"reasoning_budget_start_tag", kOlder, kHarmless, R"("<think>")", "without `reasoning_budget_tokens`"},
    {"reasoning_budget_end_tag", kOlder, kHarmless, R"("</think>")", "without `reasoning_budget_tokens`"},
    {"reasoning_budget_end_tags", kOlder, kHarmless, R"(["</think>"])", "without `reasoning_budget_tokens`"},
    {"reasoning_budget_message", kOlder, kHarmless, R"("a")", "without `reasoning_budget_tokens`"},
    // Options for pictures, which are refused wherever they appear.
    {"media_io_kwargs", kOlder, kHarmless, R"({"image": {}})", "pictures are refused"},
    {"mm_processor_kwargs", kOpenAi, kHarmless, R"({"a": 1})", "pictures are refused"},
    {"images_config", kOlder, kHarmless, R"({"a": 1})", "pictures are refused"},
    {"max_dynamic_patch", kOlder, kHarmless, "2", "pictures are refused"},
    {"min_dynamic_patch", kOlder, kHarmless, "2", "pictures are refused"},
    {"use_audio_in_video", kOlder, kHarmless, "true", "pictures are refused"},

    // Other sampling.
    {"best_of", kCompletions, kRefused, "2", "answers are not weighed against each other", is_at_most<1>, "1"},
    {"use_beam_search", kOlder, kRefused, "true", "there are no beams", is_false, "false"},
    {"mirostat", kOlder, kRefused, "2", "this sampler is not there", is_number<0>, "0"},
    {"typical_p", kOlder, kRefused, "0.5", "this sampler is not there", is_number<1>, "1"},
    {"top_n_sigma", kOlder, kRefused, "1", "this sampler is not there", is_at_most<0>, "0 or less"},
    {"xtc_probability", kOlder, kRefused, "0.5", "this sampler is not there", is_number<0>, "0"},
    {"dynatemp_range", kOlder, kRefused, "0.5", "the temperature is one number", is_number<0>, "0"},
    {"dry_multiplier", kOlder, kRefused, "0.8", "this penalty is not there", is_number<0>, "0"},
    {"repeat_last_n", kOlder, kRefused, "64", "the repetition penalty is over the whole context", is_whole_window,
     "-1, or no penalty"},
    {"adaptive_target", kOlder, kRefused, "0.5", "this sampler is not there", is_at_most<-1>, "-1"},
    {"min_keep", kOlder, kRefused, "5", "samplers keep what they are told to", is_at_most<1>, "1 or less"},
    {"samplers", kOlder, kRefused, R"(["top_k"])", "the order is fixed", is_empty, "empty"},
    {"allowed_token_ids", kOlder, kRefused, "[5]", "use `logit_bias`"},
    {"bad_words", kOlder, kRefused, R"(["a"])", "use `logit_bias`", is_empty, "empty"},
    {"watermarking", kOlder, kRefused, "true", "there is no watermark", is_false, "false"},
    {"custom_logit_processor", kOlder, kRefused, R"("a")", "no code of a request is run"},
    {"logits_processors", kOlder, kRefused, R"(["a"])", "no code of a request is run", is_empty, "empty"},
    {"custom_params", kOlder, kRefused, R"({"a": 1})", "no code of a request is run", is_empty, "empty"},
    {"vllm_xargs", kOpenAi, kRefused, R"({"a": 1})", "there are no extensions", is_empty, "empty"},
    {"lora", kOlder, kRefused, R"([{"id": 0, "scale": 1}])", "there are no adapters", is_empty, "empty"},
    {"lora_path", kOlder, kRefused, R"("a")", "there are no adapters", is_empty, "empty"},
    // Other forms of answers.
    {"grammar", kOlder, kRefused, R"("root ::= \"a\"")", "use `json_schema`", is_empty, "empty"},
    {"guided_grammar", kOlder, kRefused, R"("root ::= \"a\"")", "use `guided_json`", is_empty, "empty"},
    {"guided_regex", kOlder, kRefused, R"("a+")", "use `guided_json`", is_empty, "empty"},
    {"guided_choice", kOlder, kRefused, R"(["a", "b"])", "use `guided_json` with an `enum`", is_empty, "empty"},
    {"guided_whitespace_pattern", kOlder, kRefused, R"(" ")", "white space is as the form says", is_empty, "empty"},
    {"regex", kOlder, kRefused, R"("a+")", "use `json_schema`", is_empty, "empty"},
    {"ebnf", kOlder, kRefused, R"("root ::= \"a\"")", "use `json_schema`", is_empty, "empty"},
    {"structural_tag", kOlder, kRefused, R"({"type": "structural_tag"})", "use `json_schema` or `tools`", is_empty,
     "empty"},
    {"functions", kChat, kRefused, R"([{"name": "f"}])", "use `tools`", is_empty, "empty"},
    {"function_call", kChat, kRefused, R"({"name": "f"})", "use `tool_choice`", calls_no_function, "`none`, `auto`"},
    {"parse_tool_calls", kOlder, kRefused, "false", "calls are read where tools are offered", is_true, "true"},
    {"web_search_options", kChat, kRefused, R"({"search_context_size": "low"})", "nothing is searched", is_empty,
     "empty"},
    {"mcp_servers", kMessages, kRefused, R"([{"type": "url", "url": "https://example.org", "name": "a"}])",
     "no tool is run here", is_empty, "empty"},
    {"container", kMessages, kRefused, R"("a")", "no tool is run here"},
    {"audio", kChat, kRefused, R"({"voice": "a", "format": "wav"})", "answers are text"},
    {"modalities", kChat, kRefused, R"(["text", "audio"])", "answers are text", is_text_alone, "`[\"text\"]`"},
    {"moderation", kChat | kResponses, kRefused, R"({"model": "a"})", "nothing is moderated"},
    // Other prompts.
    {"suffix", kCompletions, kRefused, R"("The end.")", "texts are continued, not filled in", is_empty, "empty"},
    {"n_indent", kOlder, kRefused, "4", "lines are as the model writes them", is_number<0>, "0"},
    {"prompt_embeds", kOlder, kRefused, R"("a")", "a prompt is text or token ids"},
    {"input_ids", kChat, kRefused, "[1]", "use /v1/completions"},
    {"echo", kChat, kRefused, "true", "the conversation is not repeated", is_false, "false"},
    {"add_special_tokens", kChat, kRefused, "true", "the template writes them", is_false, "false"},
    {"add_special_tokens", kCompletions, kRefused, "false", "the tokenizer's settings say it; use token ids", is_true,
     "true"},
    {"chat_template", kChat, kRefused, R"("{{ messages }}")", "`--chat-template` says it"},
    {"generation_prompt", kChat, kRefused, R"("a")", "use `continue_final_message`", is_empty, "empty"},
    {"documents", kChat, kRefused, R"([{"title": "a", "text": "b"}])", "put them into a message", is_empty, "empty"},
    {"task", kChat, kRefused, R"("title")", "put it into a message"},
    {"truncate_prompt_tokens", kOlder, kRefused, "5", "a prompt that is too long is refused"},
    {"previous_response_id", kResponses, kRefused, R"("resp_1")",
     "this server keeps no responses; send all of `input`"},
    {"conversation", kResponses, kRefused, R"("conv_1")", "this server keeps no responses; send all of `input`"},
    {"previous_response", kResponses, kRefused, R"({"id": "a"})", "send its items in `input`"},
    {"previous_input_messages", kResponses, kRefused, R"([{"role": "user", "content": "a"}])", "send them in `input`",
     is_empty, "empty"},
    {"prompt", kResponses, kRefused, R"({"id": "pmpt_1"})",
     "there are no prompts by name; send `instructions` and `input`"},
    {"background", kResponses, kRefused, "true", "this server keeps no responses", is_false, "false"},
    {"thread", kMessages, kRefused, R"({"id": "a"})", "this server keeps no messages; send all of them"},
    {"session_params", kOlder, kRefused, R"({"id": "a"})", "this server keeps no sessions; send the whole prompt",
     is_empty, "empty"},
    {"cache_salt", kOpenAi, kRefused, R"("a")", "what prompts have in common is kept for all"},
    {"kv_transfer_params", kOlder, kRefused, R"({"a": 1})", "caches are not sent elsewhere", is_empty, "empty"},
    {"ec_transfer_params", kOlder, kRefused, R"({"a": 1})", "caches are not sent elsewhere", is_empty, "empty"},
    {"bootstrap_host", kOlder, kRefused, R"("a")", "caches are not sent elsewhere"},
    {"bootstrap_port", kOlder, kRefused, "1", "caches are not sent elsewhere"},
    {"bootstrap_room", kOlder, kRefused, "1", "caches are not sent elsewhere"},
    // Other ends of answers.
    {"include_stop_str_in_output", kOpenAi, kRefused, "true", "the text ends in front of it", is_false, "false"},
    {"no_stop_trim", kOlder, kRefused, "true", "the text ends in front of what stops it", is_false, "false"},
    {"stop_regex", kOlder, kRefused, R"("a+")", "use `stop`", is_empty, "empty"},
    {"t_max_predict_ms", kOlder, kRefused, "100", "use `max_tokens`", is_at_most<0>, "0 or less"},
    {"repetition_detection", kOlder, kRefused, R"({"max_pattern_size": 4})", "use a penalty"},
    {"thinking_token_budget", kOlder, kRefused, "16", "reasoning ends by itself", is_number<-1>, "-1"},
    {"thinking_budget_tokens", kOlder, kRefused, "16", "reasoning ends by itself", is_number<-1>, "-1"},
    {"reasoning_budget_tokens", kOlder, kRefused, "16", "reasoning ends by itself", is_number<-1>, "-1"},
    // Other outputs.
    {"prompt_logprobs", kOlder, kRefused, "1", "use /v1/completions with `echo` and `logprobs`"},
    {"top_logprobs", kResponses, kRefused, "2", "use /v1/chat/completions", is_number<0>, "0"},
    {"include", kResponses, kRefused, R"(["message.output_text.logprobs"])", "use /v1/chat/completions",
     includes_no_logprobs, "all but `message.output_text.logprobs`"},
    {"n_probs", kOlder, kRefused, "2", "use `logprobs`", is_number<0>, "0"},
    {"post_sampling_probs", kOlder, kRefused, "true", "`logprobs` are those before", is_false, "false"},
    {"logprob_token_ids", kOlder, kRefused, "[5]", "use `logprobs`", is_empty, "empty"},
    {"return_tokens_as_token_ids", kOlder, kRefused, "true", "use /tokenize", is_false, "false"},
    {"return_token_ids", kOlder, kRefused, "true", "use /tokenize", is_false, "false"},
    {"return_tokens", kOlder, kRefused, "true", "use /tokenize", is_false, "false"},
    {"return_prompt_token_ids", kOlder, kRefused, "true", "use /apply-template and /tokenize", is_false, "false"},
    {"return_prompt_text", kOlder, kRefused, "true", "use /apply-template", is_false, "false"},
    {"return_hidden_states", kOlder, kRefused, "true", "states are not told", is_false, "false"},
    {"return_routed_experts", kOlder, kRefused, "true", "`dsrun --trace` tells them", is_false, "false"},
    {"return_cached_tokens_details", kOlder, kRefused, "true", "`usage` has their number", is_false, "false"},
    {"return_meta_info", kOlder, kRefused, "true", "`usage` and `timings` have what is told", is_false, "false"},
    {"enable_response_messages", kResponses, kRefused, "true", "`output` has them", is_false, "false"},
    {"response_fields", kOlder, kRefused, R"(["content"])", "answers have all their fields", is_empty, "empty"},
    {"skip_special_tokens", kOpenAi, kRefused, "false", "they are not shown", is_true, "true"},
    {"include_reasoning", kChat, kRefused, "false", "turn reasoning off, or pass over it", is_true, "true"},
    {"separate_reasoning", kChat, kRefused, "false", "it comes as `reasoning_content`", is_true, "true"},
    {"stream_reasoning", kChat, kRefused, "false", "it is sent as it comes", is_true, "true"},
    {"reasoning_format", kChat, kRefused, R"("none")", "it comes as `reasoning_content`", divides_reasoning,
     "`auto`, `deepseek`"},
};

using Names = std::unordered_multimap<std::string_view, const RequestField*>;

Names by_name() {
  Names names;
  for (const RequestField& field : kFields)
    names.emplace(field.name, &field);
  return names;
}

struct Route {
  std::string_view path;  // "{id}" at the end: any name
  std::string_view summary;
  uint8_t api = 0;  // bit of RequestApi; 0: its body has no field table
  bool is_get = false;
  std::string_view fields = {};  // body fields, if it has no table
};

constexpr Route kRoutes[] = {
    {"/v1/chat/completions", "OpenAI's chat", kChat},
    {"/v1/completions", "A text, or token ids, is continued as it is", kCompletions},
    {"/v1/responses", "OpenAI's newer form; nothing is kept", kResponses},
    {"/v1/messages", "Anthropic's chat", kMessages},
    {"/v1/messages/count_tokens", "The tokens of such a request", kMessages},
    {"/apply-template", "The text that the model reads", kChat},
    {"/tokenize", "A text's token ids", 0, false, "content,prompt,add_special"},
    {"/detokenize", "The text of token ids", 0, false, "tokens"},
    {"/v1/models", "The one model", 0, true},
    {"/v1/models/{id}", "The one model", 0, true},
    {"/health", "A sign of life", 0, true},
    {"/v1/health", "A sign of life", 0, true},
    {"/version", "The version of dspack", 0, true},
    {"/props", "Settings", 0, true},
    {"/metrics", "Counts in Prometheus' form", 0, true},
    {"/machine", "The machine at work, as server-sent events", 0, true},
    {"/openapi.json", "This description", 0, true},
    {"/", "A page to chat", 0, true},
};

OrderedJson properties_of(const Route& route) {
  OrderedJson properties = OrderedJson::object();
  for (size_t at = 0; at < route.fields.size();) {
    const size_t end = std::min(route.fields.find(',', at), route.fields.size());
    properties[std::string(route.fields.substr(at, end - at))] = OrderedJson::object();
    at = end + 1;
  }
  for (const RequestField& field : request_fields()) {
    if ((field.apis & route.api) == 0) continue;
    const OrderedJson example = OrderedJson::parse(field.example);
    OrderedJson property = {{"x-treatment", to_string(field.treatment)}, {"examples", OrderedJson::array({example})}};
    if (!field.text.empty()) property["description"] = field.text;
    if (!field.idle.empty()) property["x-unless"] = field.idle;
    properties[std::string(field.name)] = std::move(property);
  }
  return properties;
}

OrderedJson operation(const Route& route) {
  OrderedJson described = {{"summary", route.summary}, {"responses", {{"200", {{"description", "The answer"}}}}}};
  if (route.path.ends_with("{id}")) {
    described["parameters"] =
        OrderedJson::array({{{"name", "id"}, {"in", "path"}, {"required", true}, {"schema", {{"type", "string"}}}}});
  }
  if (route.is_get) return described;
  described["requestBody"] = {
      {"required", true},
      {"content", {{"application/json", {{"schema", {{"type", "object"}, {"properties", properties_of(route)}}}}}}}};
  described["responses"]["400"] = {{"description", "A field is wrong, or asks for what is not there"}};
  return described;
}

/// The schema keywords and string formats that answers can be held to.
OrderedJson schema_description() {
  OrderedJson keywords = OrderedJson::array();
  for (const SchemaKeyword& each : schema_keywords()) {
    OrderedJson keyword = {{"name", each.name}, {"treatment", to_string(each.treatment)}};
    if (!each.text.empty()) keyword["description"] = each.text;
    keywords.push_back(std::move(keyword));
  }
  return {{"keywords", std::move(keywords)}, {"formats", known_formats()}};
}

}  // namespace

std::span<const RequestField> request_fields() {
  return kFields;
}

std::string_view to_string(RequestField::Treatment treatment) {
  switch (treatment) {
    case Treatment::obeyed: return "obeyed";
    case Treatment::harmless: return "harmless";
    case Treatment::refused: return "refused";
  }
  return "";
}

void remark(std::vector<std::string>& remarks, std::string line) {
  if (remarks.size() < kMaxRemarks) remarks.push_back(std::move(line));
}

Result<void> check_fields(const OrderedJson& request, RequestApi api, std::vector<std::string>& remarks) {
  static const Names names = by_name();
  for (const auto& [name, value] : request.items()) {
    const RequestField* field = nullptr;
    for (auto [each, end] = names.equal_range(name); each != end; ++each)
      if ((each->second->apis & api) != 0) field = each->second;
    if (field == nullptr) {
      remark(remarks, fmt::format("a request's field {} is not known, and does nothing", quote(name)));
      continue;
    }
    if (field->treatment != Treatment::refused || value.is_null()) continue;  // null counts as absent
    if (field->is_idle != nullptr && field->is_idle(value, request)) continue;
    return Error{ErrorKind::unsupported, fmt::format("\"{}\" is not supported: {}", name, field->text)};
  }
  return {};
}

std::string_view allowed_methods(std::string_view path) {
  const auto is_of = [path](const Route& route) {
    if (!route.path.ends_with("{id}")) return path == route.path;
    return path.starts_with(route.path.substr(0, route.path.find('{')));
  };
  const auto* route = std::ranges::find_if(kRoutes, is_of);
  if (route == std::end(kRoutes)) return "";
  return !route->is_get ? "POST" : route->path == "/machine" ? "GET" : "GET, HEAD";
}

OrderedJson openapi_description() {
  OrderedJson paths = OrderedJson::object();
  for (const Route& route : kRoutes)
    paths[std::string(route.path)][route.is_get ? "get" : "post"] = operation(route);
  return {{"openapi", "3.1.0"},
          {"info", {{"title", "dsrun serve"}, {"version", kVersion}}},
          {"paths", std::move(paths)},
          {"x-schemas", schema_description()}};
}

}  // namespace dspack::runtime
