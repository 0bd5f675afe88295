#include "runtime/text/reply_parser.h"

#include <algorithm>
#include <utility>

#include "runtime/text/call_arguments.h"

namespace dspack::runtime {
namespace {

using namespace marks;

/// Limit of text that began as a call and was none. Otherwise a text that begins a call every few bytes, and ends none,
/// would be read again and again.
constexpr size_t kMaxGivenUpBytes = 16U << 20U;

size_t without_space_at_end(std::string_view text) {
  const size_t last = text.find_last_not_of(kReplySpace);
  return last == std::string_view::npos ? 0 : last + 1;
}

}  // namespace

ReplyParser::ReplyParser(ReplyForm form)
    : tools_(std::move(form.tools)),
      openings_(tools_.empty() ? std::vector<std::string_view>() : CallReader::openings(form.family)),
      state_(form.reasons ? State::text : State::begin),
      is_reasoning_(form.reasons),
      has_told_ends_(form.told_ends) {}

std::vector<ReplyPart> ReplyParser::push(std::string_view text) {
  held_ += text;
  while (step(false)) {
  }
  return std::exchange(parts_, {});
}

std::vector<ReplyPart> ReplyParser::finish() {
  while (step(true)) {
  }
  return std::exchange(parts_, {});
}

ReplyCalls ReplyParser::calls() const {
  if (has_broken_call_ || is_told_) return ReplyCalls::broken;
  return has_calls_ ? ReplyCalls::whole : ReplyCalls::none;
}

void ReplyParser::emit(ReplyPart::Kind kind, std::string_view text) {
  if (!text.empty()) parts_.push_back({.kind = kind, .text = std::string(text)});
}

/// One step; false: needs more text.
bool ReplyParser::step(bool is_end) {
  switch (state_) {
    case State::begin: return begin(is_end);
    case State::after: {
      drop(leading_space());
      if (!held_.empty()) state_ = State::text;
      return !held_.empty();
    }
    case State::text: return read_text(is_end);
    case State::call: return read_call(is_end);
    case State::after_call: return follow_call(is_end);
  }
  return false;
}

/// Length of the white space at the front of held_. It may be endless: what was scanned is not scanned again.
size_t ReplyParser::leading_space() {
  seen_space_ = std::min(held_.find_first_not_of(kReplySpace, seen_space_), held_.size());
  return seen_space_;
}

void ReplyParser::drop(size_t bytes) {
  held_.erase(0, bytes);
  read_ += bytes;
  while (!ends_.empty() && ends_.front() < read_)
    ends_.pop_front();
  seen_space_ -= std::min(seen_space_, bytes);
}

bool ReplyParser::begin(bool is_end) {
  const size_t space = leading_space();
  const std::string_view rest = std::string_view(held_).substr(space);
  if (rest.starts_with(kThink)) {
    drop(space + kThink.size());
    is_reasoning_ = true;
  } else if (!is_end && kThink.starts_with(rest)) {
    return false;
  }
  state_ = State::text;
  return true;
}

/// Emits the text before the first mark, or the text that is certain to precede any mark.
bool ReplyParser::read_text(bool is_end) {
  std::vector<std::string_view> marks = openings_;
  if (is_reasoning_ && !has_told_ends_) marks.push_back(kEndThink);
  size_t first = ends_.empty() ? std::string::npos : ends_.front() - read_;
  opening_ = kEndThink;
  for (const std::string_view mark : marks) {
    const size_t at = held_.find(mark, seen_space_);  // no mark begins with white space
    if (at >= first) continue;
    first = at;
    opening_ = mark;
  }
  if (first == std::string::npos ||
      first + opening_.size() > held_.size()) {  // an announced mark may still be incomplete
    size_t end = is_end ? held_.size() : std::min(first, held_.size());
    if (!is_end && (is_reasoning_ || !marks.empty())) {
      end = std::min(end, held_.size() - begun_mark(held_, marks));
      end = leading_space() >= end ? 0 : without_space_at_end(std::string_view(held_).substr(0, end));
    }
    emit(kind(), std::string_view(held_).substr(0, end));
    drop(end);
    return false;
  }
  if (opening_ == kEndThink && !is_reasoning_) {
    emit(kind(), std::string_view(held_).substr(0, first));
    drop(first + kEndThink.size());
    return true;
  }
  const size_t end = without_space_at_end(std::string_view(held_).substr(0, first));
  emit(kind(), std::string_view(held_).substr(0, end));
  if (opening_ == kEndThink) {
    drop(first + kEndThink.size());
    is_reasoning_ = false;
    state_ = State::after;
    return true;
  }
  drop(end);
  space_ = first - end;
  reader_ = CallReader::make(opening_, tools_);
  state_ = State::call;
  return true;
}

bool ReplyParser::read_call(bool is_end) {
  const auto state = reader_->read(std::string_view(held_).substr(space_));
  // Within reasoning a call is emitted only once it is whole; elsewhere its arguments are emitted as they arrive.
  const bool is_whole = state == CallReader::State::whole;
  if (state == CallReader::State::no_call) return give_up_call(reader_->read_bytes());
  if (!is_whole && (state == CallReader::State::undecided || is_reasoning_))
    return is_end && give_up_call(held_.size() - space_);
  if (is_reasoning_ && !reader_->has_object()) return give_up_call(reader_->read_bytes());
  if (is_end && !is_whole) reader_->cut();
  tell_call();
  if (!is_whole) {
    if (is_end) drop(held_.size());
    return false;
  }
  is_told_ = false;
  has_broken_call_ |= !reader_->has_object();
  if (!reader_->end_of_block().empty()) block_end_ = reader_->end_of_block();
  drop(space_ + reader_->read_bytes());
  state_ = State::after_call;
  return true;
}

void ReplyParser::tell_call() {
  if (!std::exchange(is_told_, true)) {
    has_calls_ = true;
    parts_.push_back({.kind = ReplyPart::Kind::call, .text = reader_->name(), .id = reader_->id()});
  }
  emit(ReplyPart::Kind::arguments, reader_->take_arguments());
}

/// Treats the mark as text, and continues to read after it.
bool ReplyParser::give_up_call(size_t read_bytes) {
  given_up_bytes_ += read_bytes;
  if (given_up_bytes_ > kMaxGivenUpBytes) openings_.clear();
  const size_t end = space_ + opening_.size();
  emit(kind(), std::string_view(held_).substr(0, end));
  drop(end);
  state_ = State::text;
  return true;
}

bool ReplyParser::follow_call(bool is_end) {
  const size_t space = leading_space();
  if (space == held_.size()) {
    if (is_end) drop(space);
    return false;
  }
  const std::string_view rest = std::string_view(held_).substr(space);
  if (!block_end_.empty() && rest.starts_with(block_end_)) {
    drop(space + block_end_.size());
    block_end_ = {};
    return true;
  }
  if (!is_end && !block_end_.empty() && block_end_.starts_with(rest)) return false;
  state_ = State::text;
  return true;
}

}  // namespace dspack::runtime
