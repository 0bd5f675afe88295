#include "reshard/verbs/diff.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "format/base/foreign_text.h"
#include "format/base/parallel.h"
#include "format/base/size.h"
#include "format/json.h"
#include "reshard/run/companions.h"
#include "reshard/run/tensor_reader.h"

namespace dspack::reshard {
namespace {

using format::TensorEntry;

std::string describe(const TensorEntry& tensor) {
  return fmt::format("{} [{}]", to_string(tensor.dtype), fmt::join(tensor.shape, ","));
}

uint32_t index_of(const TensorEntry& tensor, const format::Checkpoint& catalogue) {
  return static_cast<uint32_t>(&tensor - catalogue.tensors().data());
}

std::string layers_of(const DiffSide& side) {
  const auto& manifest = side.catalogue.manifest();
  return manifest && manifest->layer_map ? format::to_string(*manifest->layer_map) : "each layer once";
}

void sort_differences(std::vector<Difference>& differences) {
  std::sort(differences.begin(), differences.end(), [](const Difference& x, const Difference& y) {
    return std::tie(x.kind, x.name) < std::tie(y.kind, y.name);
  });
}

/// Runs the jobs of both digesters in one pool.
Result<void> read_digests(TensorDigester& a, TensorDigester& b, unsigned jobs, format::Progress& progress,
                          const std::stop_token& stop) {
  progress.started("comparing", a.bytes() + b.bytes(), a.files() + b.files());
  const auto one = [&](uint64_t i, const std::stop_token& stop_one) -> Result<void> {
    TRY(i < a.files() ? a.run(i, progress, stop_one) : b.run(i - a.files(), progress, stop_one));
    progress.item_done();
    return {};
  };
  TRY(run_jobs(a.files() + b.files(), jobs, one, stop));
  progress.finished();
  return {};
}

Result<void> diff_tensors(const DiffSide& a, const DiffSide& b, unsigned jobs, DiffReport& report,
                          format::Progress& progress, const std::stop_token& stop) {
  TensorDigester digests_a(a.repository, a.catalogue);
  TensorDigester digests_b(b.repository, b.catalogue);
  std::vector<std::pair<uint32_t, uint32_t>> pairs;  // tensors that can only differ in their bytes
  for (const TensorEntry& x : a.catalogue.tensors()) {
    const TensorEntry* y = b.catalogue.find(x.name);
    if (y == nullptr) {
      report.tensors.push_back({DifferenceKind::only_in_a, x.name, {}});
    } else if (x.dtype != y->dtype || x.shape != y->shape) {
      report.tensors.push_back(
          {DifferenceKind::type, x.name, fmt::format("{} in A, {} in B", describe(x), describe(*y))});
    } else {
      pairs.emplace_back(index_of(x, a.catalogue), index_of(*y, b.catalogue));
      digests_a.want(pairs.back().first);
      digests_b.want(pairs.back().second);
    }
  }
  for (const TensorEntry& y : b.catalogue.tensors()) {
    if (a.catalogue.find(y.name) == nullptr) report.tensors.push_back({DifferenceKind::only_in_b, y.name, {}});
  }
  TRY(read_digests(digests_a, digests_b, jobs, progress, stop));
  report.bytes_read += digests_a.bytes() + digests_b.bytes();
  for (const auto& [x, y] : pairs) {
    if (digests_a.digest(x) == digests_b.digest(y)) {
      ++report.equal_tensors;
    } else {
      report.tensors.push_back({DifferenceKind::bytes, a.catalogue.tensors()[x].name, {}});
    }
  }
  sort_differences(report.tensors);
  return {};
}

Result<void> diff_companions(const DiffSide& a, const DiffSide& b, unsigned jobs, DiffReport& report,
                             const std::stop_token& stop) {
  const DiffSide* sides[] = {&a, &b};
  std::set<std::string> names;  // from both: a place that cannot be listed is tried for the other's names
  for (const DiffSide* side : sides) {
    TRY_ASSIGN(const auto known, companion_names({side->repository, side->catalogue}, stop));
    names.insert(known.begin(), known.end());
  }
  CompanionDigests digests[2];
  for (size_t i = 0; i < 2; ++i) {
    TRY_ASSIGN(digests[i],
               companion_digests({sides[i]->repository, sides[i]->catalogue}, names, jobs, report.bytes_read, stop));
  }
  for (const std::string& name : names) {
    const auto x = digests[0].find(name);
    const auto y = digests[1].find(name);
    const bool in_a = x != digests[0].end();
    const bool in_b = y != digests[1].end();
    if (!in_a && !in_b) continue;
    if (in_a && in_b && x->second == y->second) {
      ++report.equal_companions;
      continue;
    }
    const auto kind = !in_b ? DifferenceKind::only_in_a : !in_a ? DifferenceKind::only_in_b : DifferenceKind::bytes;
    report.companions.push_back({kind, name, {}});
  }
  sort_differences(report.companions);
  return {};
}

}  // namespace

Result<DiffReport> diff(const DiffSide& a, const DiffSide& b, const DiffOptions& options, format::Progress& progress,
                        const std::stop_token& stop) {
  DiffReport report;
  TRY(diff_tensors(a, b, options.jobs, report, progress, stop));
  if (!options.companions) return report;
  TRY(diff_companions(a, b, options.jobs, report, stop));
  if (layers_of(a) != layers_of(b)) report.layer_maps = fmt::format("{} in A, {} in B", layers_of(a), layers_of(b));
  return report;
}

// Formatting of differences.
namespace {

struct KindName {
  DifferenceKind kind;
  std::string_view key;      // value of "kind" in JSON
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
      // A name comes from outside; quoted as JSON it cannot forge lines.
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
         fmt::format("{} tensors equal, {} differ; {} companions equal, {} differ; {} read\n", report.equal_tensors,
                     report.tensors.size(), report.equal_companions, report.companions.size(),
                     exact_size_words(report.bytes_read));
}

std::string diff_json(const DiffReport& report) {
  std::string lines = json_lines("tensor", report.tensors) + json_lines("companion", report.companions);
  if (!report.layer_maps.empty())
    lines += format::canonical_json({{"kind", "layer_map"}, {"detail", report.layer_maps}}) + "\n";
  return lines;
}

}  // namespace dspack::reshard
