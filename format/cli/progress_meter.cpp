#include "format/cli/progress_meter.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "format/base/display_width.h"
#include "format/base/foreign_text.h"
#include "format/cli/output.h"

namespace dspack::format {
namespace {

double between_times(ProgressMeter::Time from, ProgressMeter::Time to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

std::string clock_words(double seconds) {
  const auto whole = static_cast<uint64_t>(std::lround(std::min(seconds, 1e9)));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
}

std::string silence_words(std::string_view what, double silence_seconds, const ProgressMeter::Wait& wait) {
  if (silence_seconds < kSilenceSeconds) return {};
  std::string words = fmt::format("no {} for {}", what, clock_words(silence_seconds));
  if (!wait || wait->retry == 0) return words;
  words += fmt::format(", retry {} of {}", wait->retry, wait->retries);
  if (wait->pause_seconds >= 1) words += " in " + clock_words(wait->pause_seconds);
  return words;
}

void RecentRate::start(uint64_t amount, Time now) {
  *this = {};
  amount_ = amount;
  samples_[sampled_++] = {now, amount};
}

void RecentRate::reached(uint64_t amount, Time now) {
  amount_ = amount;
  if (between_times(samples_[(sampled_ - 1) % kSamples].time, now) < 1) return;
  samples_[sampled_++ % kSamples] = {now, amount};
}

double RecentRate::at(Time now) const {
  const Sample& oldest = samples_[sampled_ <= kSamples ? 0 : sampled_ % kSamples];
  const double seconds = between_times(oldest.time, now);
  return seconds > 0 ? static_cast<double>(amount_ - oldest.amount) / seconds : 0;
}

void ProgressMeter::start(const Work& work, Time now) {
  *this = {};
  what_ = brief(work.what);
  item_ = work.item;
  total_bytes_ = work.total_bytes;
  total_items_ = work.total_items;
  has_rate_ = total_bytes_ > 0;
  begin_ = arrived_ = now;
  rate_.start(0, now);
}

void ProgressMeter::advance(uint64_t bytes, Time now) {
  bytes_ += bytes;
  arrived_ = now;
  rate_.reached(bytes_, now);
}

void ProgressMeter::item_done(Time now) {
  ++items_;
  arrived_ = now;
}

void ProgressMeter::reach(uint64_t items, std::string_view more, Time now) {
  items_ = items;
  more_ = more;
  arrived_ = now;
  has_rate_ = true;
  rate_.reached(items, now);
}

std::string ProgressMeter::line(Time now, const Wait& wait) const {
  std::string text = what_;
  const char* separator = ": ";
  const auto add = [&](const std::string& part) {
    if (part.empty()) return;
    text += separator + part;
    separator = ", ";
  };
  if (total_bytes_ == 0 && total_items_ == 0) {
    add(clock_words(between_times(begin_, now)));
    if (wait) add(silence_words("byte", wait->silence_seconds, wait));
    return text;
  }
  if (total_bytes_ > 0) add(fmt::format("{} of {}", human_bytes(bytes_), human_bytes(total_bytes_)));
  if (total_items_ > 0) add(fmt::format("{} of {} {}", items_, total_items_, item_));
  const std::string silence = silence_words(total_bytes_ > 0 ? "byte" : "answer", between_times(arrived_, now), wait);
  add(silence);
  if (silence.empty() && has_rate_) {
    const double rate = rate_.at(now);
    const uint64_t left = total_bytes_ > 0 ? total_bytes_ - std::min(bytes_, total_bytes_)
                                           : total_items_ - std::min(items_, total_items_);
    add(total_bytes_ > 0 ? human_bytes(static_cast<uint64_t>(rate)) + "/s" : fmt::format("{:.1f} {}/s", rate, item_));
    if (rate > 0 && left > 0) add(clock_words(static_cast<double>(left) / rate) + " left");
  }
  add(more_);
  return text;
}

std::string clipped(std::string_view line, size_t columns) {
  constexpr std::string_view kDots = "...";
  const size_t room = columns > 1 ? columns - 1 : 0;
  if (columns_of(line) <= room) return std::string(line);
  const size_t kept = room > kDots.size() ? room - kDots.size() : 0;
  return std::string(line.substr(0, bytes_within(line, kept))) + std::string(kDots.substr(0, room - kept));
}

}  // namespace dspack::format
