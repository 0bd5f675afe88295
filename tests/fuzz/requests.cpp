// Bodies of requests to dsrun serve, in each of its APIs: OpenAI's chat, completions and Responses, Anthropic's
// messages. Input: the JSON.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "runtime/serve/answer_request.h"
#include "runtime/text/builtin_templates.h"
#include "runtime/text/chat_template.h"
#include "runtime/text/schema_grammar.h"
#include "tests/fuzz/target.h"

using namespace dspack;
using runtime::AnswerRequest;

namespace {

const std::vector<runtime::ChatTemplate>& templates() {
  static const std::vector<runtime::ChatTemplate> kAll = [] {
    std::vector<runtime::ChatTemplate> all;
    for (const std::string& name : runtime::builtin_template_names())
      all.push_back(*runtime::ChatTemplate::named(name));
    return all;
  }();
  return kAll;
}

void check_form(const runtime::AnswerForm& form) {
  using Kind = runtime::AnswerForm::Kind;
  DSPACK_CHECK(form.kind == Kind::calls || form.kind == Kind::strict_calls || form.tools.empty(), "tools of no call");
  DSPACK_CHECK(form.kind != Kind::calls || !form.tools.empty(), "a call of nothing is forced");
  for (const runtime::CallableTool& tool : form.tools)
    DSPACK_CHECK(!tool.name.empty() && tool.name.size() <= 64, "a tool with a name that no form has");
  if (form.kind != Kind::schema) return;
  DSPACK_CHECK(runtime::schema_grammar(form.schema).has_value(), "a schema that is refused the second time");
}

void check_conversation(const runtime::Conversation& conversation) {
  runtime::RenderOptions options{.bos_token = "<bos>", .eos_token = "<eos>"};
  DSPACK_CHECK(conversation.tools.is_null() || conversation.tools.is_array(), "tools that are no list");
  DSPACK_CHECK(conversation.arguments.is_null() || conversation.arguments.is_object(), "arguments without names");
  options.tools = conversation.tools;
  options.arguments = conversation.arguments;
  options.add_generation_prompt = conversation.add_generation_prompt;
  options.continue_final_message = conversation.continue_final_message;
  for (const runtime::ChatTemplate& each : templates()) {
    const auto text = each.render(conversation.messages, options);
    if (!text) fuzz::check_refusal(text.error());
  }
}

// What was accepted can be carried out.
void check_request(const AnswerRequest& request) {
  const auto* conversation = std::get_if<runtime::Conversation>(&request.prompt);
  DSPACK_CHECK(conversation == nullptr || request.max_tokens.value_or(1) > 0, "an answer without tokens");
  DSPACK_CHECK(request.choices >= 1 && request.choices <= 128, "a number of choices that nobody may ask for");
  const uint64_t answers = uint64_t{request.prompts()} * request.choices;
  DSPACK_CHECK(answers >= 1 && answers <= runtime::kMaxAnswers, "a number of answers that nobody may ask for");
  DSPACK_CHECK(request.top_logprobs.value_or(0) <= 20, "more logprobs than may be");
  for (const std::string& stop : request.stop)
    DSPACK_CHECK(!stop.empty(), "an empty stop string");
  const bool is_number = std::ranges::all_of(
      std::vector<double>{request.sampling.temperature, request.sampling.top_p, request.sampling.min_p},
      [](double value) { return std::isfinite(value); });
  const auto sampler = runtime::Sampler::make(request.sampling);
  if (!sampler) fuzz::check_refusal(sampler.error());
  DSPACK_CHECK(!sampler || is_number, "a sampler of what is no number");
  check_form(request.form);
  for (const std::string& remark : request.remarks)
    DSPACK_CHECK(!remark.empty() && remark.size() < 2000, "a remark as long as a stranger wants");
  if (conversation != nullptr) check_conversation(*conversation);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view body = fuzz::as_text(data, size);
  for (const auto parse : {runtime::parse_chat_request, runtime::parse_completion_request,
                           runtime::parse_responses_request, runtime::parse_messages_request}) {
    const auto request = parse(body, {});
    if (request)
      check_request(*request);
    else
      fuzz::check_refusal(request.error());
  }
  return 0;
}
