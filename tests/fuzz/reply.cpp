// An answer of a model, divided into reasoning, content and calls. Input: a letter for what the reply may consist of
// (its bits: reasoning, tools offered; the rest is the family, and whether every second </think> is told as a token),
// then the answer. However the answer is cut into pieces, the same comes out.
#include <optional>
#include <string>
#include <vector>

#include "runtime/text/reply_parser.h"
#include "tests/fuzz/target.h"

using namespace dspack;
using runtime::ReplyForm;
using runtime::ReplyParser;
using runtime::ReplyPart;

namespace {

ReplyForm form_of(unsigned choice) {
  ReplyForm form{.reasons = (choice & 1U) != 0};
  if ((choice & 2U) != 0) {
    form.tools = {{.name = "get_weather",
                   .parameters = {{"properties", {{"city", {{"type", "string"}}}, {"days", {{"type", "integer"}}}}}}},
                  {.name = "f", .parameters = {}},
                  {.name = "function", .parameters = {}}};
  }
  constexpr unsigned kFamilies = 6;
  const unsigned family = (choice >> 2U) % (kFamilies + 1);
  if (family < kFamilies) form.family = static_cast<runtime::ToolFamily>(family);
  form.told_ends = ((choice >> 2U) / (kFamilies + 1)) % 2 == 1;
  return form;
}

struct Reply {
  std::vector<ReplyPart> parts;
  runtime::ReplyCalls calls;
  [[nodiscard]] bool operator==(const Reply&) const = default;
};

/// Parts of one kind that follow each other are one; a call is not.
void add(std::vector<ReplyPart>& all, std::vector<ReplyPart> fresh) {
  for (ReplyPart& part : fresh) {
    const bool goes_on = !all.empty() && part.kind != ReplyPart::Kind::call && all.back().kind == part.kind;
    if (goes_on)
      all.back().text += part.text;
    else
      all.push_back(std::move(part));
  }
}

/// Of the answer in pieces of `piece` bytes, behind a first piece of `first`.
Reply read(const ReplyForm& form, std::string_view answer, size_t first, size_t piece) {
  ReplyParser parser(form);
  Reply reply;
  constexpr std::string_view kEnd = runtime::marks::kEndThink;
  bool is_told = true;
  for (size_t at = answer.find(kEnd); form.told_ends && at != std::string_view::npos; at = answer.find(kEnd, at + 1)) {
    if (is_told) parser.mark_end(at);
    is_told = !is_told;
  }
  add(reply.parts, parser.push(answer.substr(0, first)));
  for (size_t at = first; at < answer.size(); at += piece)
    add(reply.parts, parser.push(answer.substr(at, piece)));
  add(reply.parts, parser.finish());
  reply.calls = parser.calls();
  return reply;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view answer = fuzz::as_text(data, size);
  if (answer.empty()) return 0;
  const ReplyForm form = form_of(static_cast<unsigned char>(answer.front()));
  answer.remove_prefix(1);
  const Reply whole = read(form, answer, answer.size(), 1);
  // In two, at every place of a short answer and at some of a long one.
  constexpr size_t kMaxCuts = 400;
  const size_t stride = 1 + answer.size() / kMaxCuts;
  for (size_t cut = 0; cut <= answer.size(); cut += stride)
    DSPACK_CHECK(read(form, answer, cut, answer.size()) == whole, "another reply of an answer in two pieces");
  for (const size_t piece : {1U, 2U, 3U, 7U})
    DSPACK_CHECK(read(form, answer, 0, piece) == whole, "another reply of an answer in small pieces");
  // Nothing is made up, and each call has its arguments behind it.
  size_t bytes = 0;
  for (size_t i = 0; i < whole.parts.size(); ++i) {
    const ReplyPart& part = whole.parts[i];
    DSPACK_CHECK(part.kind != ReplyPart::Kind::arguments || whole.parts[i - 1].kind == ReplyPart::Kind::call,
                 "arguments without a call");
    DSPACK_CHECK(part.kind != ReplyPart::Kind::call || !form.tools.empty(), "a call that nobody offered");
    if (part.kind == ReplyPart::Kind::reasoning || part.kind == ReplyPart::Kind::content) bytes += part.text.size();
  }
  DSPACK_CHECK(bytes <= answer.size(), "more text than came");
  const bool is_plain =
      form.tools.empty() && !form.reasons && !form.told_ends && answer.find("<think>") == std::string_view::npos;
  const std::string_view said = whole.parts.empty() ? "" : std::string_view(whole.parts.front().text);
  DSPACK_CHECK(!is_plain || (whole.parts.size() <= 1 && said == answer), "a plain answer has changed");
  return 0;
}
