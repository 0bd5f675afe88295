#include "format/cli/progress_meter.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "format/base/foreign_text.h"
#include "format/cli/output.h"

namespace dspack::format {
namespace {

constexpr double kSilenceSeconds = 3;  // shorter pauses are usual

double between_times(ProgressMeter::Time from, ProgressMeter::Time to) {
  return std::chrono::duration<double>(to - from).count();
}

std::string clock_words(double seconds) {
  const auto whole = static_cast<uint64_t>(std::lround(std::min(seconds, 1e9)));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
}

}  // namespace

void ProgressMeter::start(std::string_view what, uint64_t total_bytes, uint64_t total_files, Time now) {
  *this = {};
  what_ = brief(what);
  total_bytes_ = total_bytes;
  total_files_ = total_files;
  begin_ = arrived_ = now;
  samples_[sampled_++] = {now, 0};
}

void ProgressMeter::advance(uint64_t bytes, Time now) {
  bytes_ += bytes;
  arrived_ = now;
  if (between_times(samples_[(sampled_ - 1) % kSamples].time, now) < 1) return;
  samples_[sampled_++ % kSamples] = {now, bytes_};
}

void ProgressMeter::file_done(Time now) {
  ++files_;
  arrived_ = now;
}

double ProgressMeter::recent_rate(Time now) const {
  const Sample& oldest = samples_[sampled_ <= kSamples ? 0 : sampled_ % kSamples];
  const double seconds = between_times(oldest.time, now);
  return seconds > 0 ? static_cast<double>(bytes_ - oldest.bytes) / seconds : 0;
}

std::string ProgressMeter::line(Time now) const {
  std::string text = what_;
  const char* separator = ": ";
  const auto add = [&](const std::string& part) {
    text += separator + part;
    separator = ", ";
  };
  if (total_bytes_ > 0) add(fmt::format("{} of {}", human_bytes(bytes_), human_bytes(total_bytes_)));
  if (total_files_ > 0) add(fmt::format("{} of {} files", files_, total_files_));
  if (total_bytes_ == 0 && total_files_ == 0) return fmt::format("{}: {}", what_, clock_words(seconds(now)));
  const double silence = between_times(arrived_, now);
  const bool is_silent = silence >= kSilenceSeconds;
  if (is_silent) add(fmt::format("no {} for {}", total_bytes_ > 0 ? "byte" : "answer", clock_words(silence)));
  if (is_silent || total_bytes_ == 0) return text;
  const double rate = recent_rate(now);
  add(human_bytes(static_cast<uint64_t>(rate)) + "/s");
  if (rate > 0 && bytes_ < total_bytes_) add(clock_words(static_cast<double>(total_bytes_ - bytes_) / rate) + " left");
  return text;
}

std::string clipped(std::string_view line, size_t columns) {
  constexpr std::string_view kDots = "...";
  const auto is_first = [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; };  // of a UTF-8 sequence
  const size_t room = columns > 1 ? columns - 1 : 0;
  const auto characters = static_cast<size_t>(std::ranges::count_if(line, is_first));
  if (characters <= room) return std::string(line);
  const size_t kept = room > kDots.size() ? room - kDots.size() : 0;
  size_t at = 0;
  for (size_t seen = 0; at < line.size(); ++at) {
    if (is_first(line[at]) && seen++ == kept) break;
  }
  return std::string(line.substr(0, at)) + std::string(kDots.substr(0, room - kept));
}

}  // namespace dspack::format
