// Bodies of requests to dsrun serve, in each of its APIs. Input: the JSON.
#include <string>

#include "runtime/serve/answer_request.h"
#include "runtime/text/chat_template.h"
#include "tests/fuzz/target.h"

using namespace dspack;
using runtime::AnswerRequest;

namespace {

// What was accepted can be carried out.
void check_request(const AnswerRequest& request) {
  const auto* conversation = std::get_if<runtime::Conversation>(&request.prompt);
  DSPACK_CHECK(conversation == nullptr || request.max_tokens.value_or(1) > 0, "an answer without tokens");
  DSPACK_CHECK(request.choices >= 1 && request.choices <= 128, "a number of choices that nobody may ask for");
  const uint64_t answers = uint64_t{request.prompts()} * request.choices;
  DSPACK_CHECK(answers >= 1 && answers <= runtime::kMostAnswers, "a number of answers that nobody may ask for");
  DSPACK_CHECK(request.top_logprobs.value_or(0) <= 20, "more logprobs than may be");
  for (const std::string& stop : request.stop)
    DSPACK_CHECK(!stop.empty(), "an empty stop string");
  const auto sampler = runtime::Sampler::make(request.sampling);
  if (!sampler) fuzz::check_refusal(sampler.error());
  if (conversation == nullptr) return;
  runtime::RenderOptions options{.bos_token = "<bos>", .eos_token = "<eos>"};
  options.tools = conversation->tools;
  const auto text = runtime::ChatTemplate::named("deepseek-v3")->render(conversation->messages, options);
  if (!text) fuzz::check_refusal(text.error());
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
