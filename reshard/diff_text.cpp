// How the differences of two checkpoints are written down.
#include <algorithm>

#include <fmt/format.h>

#include "format/base/foreign_text.h"
#include "format/json.h"
#include "reshard/diff.h"

namespace dspack::reshard {
namespace {

struct KindName {
  DifferenceKind kind;
  std::string_view key;      // in JSON
  std::string_view heading;  // for people
};

constexpr KindName kKinds[] = {{DifferenceKind::only_in_a, "only_in_a", "only in A"},
                               {DifferenceKind::only_in_b, "only_in_b", "only in B"},
                               {DifferenceKind::type, "type", "other dtype or shape"},
                               {DifferenceKind::bytes, "bytes", "other bytes"}};

std::string section(std::string_view what, const std::vector<Difference>& differences) {
  std::string text;
  for (const KindName& name : kKinds) {
    const auto count =
        std::count_if(differences.begin(), differences.end(), [&](const auto& d) { return d.kind == name.kind; });
    if (count == 0) continue;
    text += fmt::format("{} {} ({}):\n", what, name.heading, count);
    for (const Difference& difference : differences) {
      if (difference.kind != name.kind) continue;
      // A name is text from outside; quoted as JSON it cannot forge lines.
      text += fmt::format("  {}{}\n", brief(format::canonical_json(difference.name)),
                          difference.detail.empty() ? "" : ": " + brief(difference.detail));
    }
  }
  return text;
}

std::string json_lines(std::string_view what, const std::vector<Difference>& differences) {
  std::string text;
  for (const Difference& difference : differences) {
    const auto* const name = std::find_if(std::begin(kKinds), std::end(kKinds),
                                          [&](const KindName& k) { return k.kind == difference.kind; });
    format::Json line = {{"kind", name->key}, {what, difference.name}};
    if (!difference.detail.empty()) line["detail"] = difference.detail;
    text += format::canonical_json(line) + "\n";
  }
  return text;
}

}  // namespace

std::string diff_text(const DiffReport& report) {
  const std::string maps = report.layer_maps.empty() ? "" : "layer maps: " + brief(report.layer_maps) + "\n";
  return section("tensors,", report.tensors) + section("companions,", report.companions) + maps +
         fmt::format("{} tensors equal, {} differ; {} companions equal, {} differ; {} bytes read\n",
                     report.equal_tensors, report.tensors.size(), report.equal_companions, report.companions.size(),
                     report.bytes_read);
}

std::string diff_json(const DiffReport& report) {
  std::string lines = json_lines("tensor", report.tensors) + json_lines("companion", report.companions);
  if (!report.layer_maps.empty())
    lines += format::canonical_json({{"kind", "layer_map"}, {"detail", report.layer_maps}}) + "\n";
  return lines;
}

}  // namespace dspack::reshard
