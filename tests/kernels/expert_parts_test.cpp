// Routed experts a few at a time: whatever groups and calls they come in, the bits are those of all at once; and queues
// of one device that wait for each other.
#include "tests/kernels/put_experts.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <numeric>

namespace dspack::test::expert_parts_test {
namespace {

/// Experts that some assignments go to, in a random order.
std::vector<std::pair<uint32_t, std::vector<uint32_t>>> groups_of(const std::vector<uint32_t>& ids, Random& random) {
  std::vector<std::pair<uint32_t, std::vector<uint32_t>>> groups;
  for (uint32_t part = 0; part < ids.size(); ++part) {
    const auto found = std::ranges::find(groups, ids[part], [](const auto& group) { return group.first; });
    if (found == groups.end()) {
      groups.insert(groups.begin() + random.below(static_cast<uint32_t>(groups.size()) + 1), {ids[part], {part}});
    } else {
      found->second.push_back(part);
    }
  }
  return groups;
}

void check_parts(Lab& lab, const PartsCase& c, Random& random) {
  CAPTURE(to_string(c.dtype));
  CAPTURE(c.tokens);
  const PutExperts experts(lab, c, random);
  const size_t rows = size_t{c.tokens} * c.top_k;
  const uint32_t stride = c.hidden + 5;
  const kernels::Rows parts{
      .data = lab.poisoned(rows * stride - 5), .rows = static_cast<uint32_t>(rows), .cols = c.hidden, .stride = stride};
  const auto groups = groups_of(experts.ids, random);
  std::vector<bool> is_done(rows);
  for (size_t first = 0; first < groups.size();) {
    const size_t count = std::min<size_t>(random.between(1, 3), groups.size() - first);
    std::vector<kernels::ExpertGroup> some;
    for (size_t i = first; i < first + count; ++i) {
      some.push_back({.entry = groups[i].first, .parts = groups[i].second});
      for (const uint32_t part : groups[i].second)
        is_done[part] = true;
    }
    lab.queue().run_expert_parts({.table = experts.table.get(),
                                  .x = experts.x,
                                  .groups = some,
                                  .top_k = c.top_k,
                                  .scratch = {.buffer = experts.parts_scratch.get(), .offset_bytes = 0},
                                  .parts = parts});
    first += count;
    const auto stored = lab.get(parts.data, rows * stride - 5);
    const auto values = dense(stored, rows, c.hidden, stride);
    for (size_t part = 0; part < rows; ++part)
      REQUIRE(is_poison(values[part * c.hidden]) == !is_done[part]);
  }
  const size_t count = size_t{c.tokens} * c.hidden;
  const kernels::Rows y{.data = lab.poisoned(count), .rows = c.tokens, .cols = c.hidden, .stride = c.hidden};
  lab.queue().combine(y, parts, experts.weights, c.top_k);
  CHECK(lab.get(y.data, count) == experts.at_once(lab));
}

/// Which experts are held: every one, none, or each with some chance.
enum class Held { all, none, some };

/// Experts are called otherwise than their entries; what is held is computed as run_expert_parts does, the rest is
/// left.
void check_held(Lab& lab, const PartsCase& c, Held held, Random& random) {
  CAPTURE(to_string(c.dtype));
  CAPTURE(c.tokens);
  const PutExperts experts(lab, c, random);
  const uint32_t names = c.experts + 7;
  std::vector<uint32_t> order(names);
  std::iota(order.begin(), order.end(), 0U);
  std::vector<uint32_t> name_of;  // by entry
  std::vector<uint32_t> entries(names, kernels::kNoEntry);
  for (uint32_t entry = 0; entry < c.experts; ++entry) {
    const uint32_t at = random.below(static_cast<uint32_t>(order.size()));
    name_of.push_back(order[at]);
    order.erase(order.begin() + at);
    const bool is_held = held == Held::all || (held == Held::some && random.below(2) == 0);
    if (is_held) entries[name_of.back()] = entry;
  }
  std::vector<uint32_t> named;
  std::ranges::transform(experts.ids, std::back_inserter(named), [&](uint32_t entry) { return name_of[entry]; });
  const uint32_t rows = c.tokens * c.top_k;
  const auto poisoned = [&] {
    return kernels::Rows{
        .data = lab.poisoned(size_t{rows} * c.hidden), .rows = rows, .cols = c.hidden, .stride = c.hidden};
  };
  const kernels::Rows parts = poisoned();
  const kernels::Rows wanted = poisoned();
  const kernels::Slice scratch{.buffer = experts.parts_scratch.get(), .offset_bytes = 0};
  const bool runs = lab.queue().run_held_experts({.table = experts.table.get(),
                                                  .entries = entries,
                                                  .x = experts.x,
                                                  .ids = lab.put(named),
                                                  .top_k = c.top_k,
                                                  .scratch = scratch,
                                                  .parts = parts});
  CHECK(runs == (!lab.device().is_host() && c.tokens <= 8));
  std::vector<kernels::ExpertGroup> groups;
  const auto all = groups_of(experts.ids, random);
  for (const auto& [entry, of_entry] : all)
    if (runs && entries[name_of[entry]] != kernels::kNoEntry) groups.push_back({.entry = entry, .parts = of_entry});
  lab.queue().run_expert_parts({.table = experts.table.get(),
                                .x = experts.x,
                                .groups = groups,
                                .top_k = c.top_k,
                                .scratch = scratch,
                                .parts = wanted});
  const auto bits = [&](const kernels::Rows& of) {
    const auto values = lab.get(of.data, size_t{rows} * c.hidden);
    std::vector<uint32_t> words(values.size());
    std::memcpy(words.data(), values.data(), values.size() * sizeof(float));
    return words;
  };
  const auto stored = lab.get(parts.data, size_t{rows} * c.hidden);
  for (uint32_t part = 0; part < rows; ++part)
    REQUIRE(is_poison(stored[size_t{part} * c.hidden]) == (!runs || entries[named[part]] == kernels::kNoEntry));
  CHECK(bits(parts) == bits(wanted));
}

}  // namespace

KERNEL_CASE("held experts: the device finds those that a table has, and computes them with the bits of any call") {
  SKIP_UNLESS_SET_RUNS();
  Random random;
  INFO("seed ", random.seed());
  Lab lab(Set::kName);
  for (const Held held : {Held::some, Held::all, Held::none}) {
    for (const PartsCase& c :
         {PartsCase{Dtype::f8_e4m3, 9, 160, 48, 128, 3, 1}, PartsCase{Dtype::f8_e4m3, 9, 160, 48, 128, 3, 2},
          PartsCase{Dtype::f8_e4m3, 16, 96, 33, 16, 8, 8}, PartsCase{Dtype::bf16, 6, 80, 32, 0, 2, 5},
          PartsCase{Dtype::bf16, 4, 80, 32, 0, 2, 9}, PartsCase{Dtype::i8, 4, 36, 17, 9, 2, 3},
          PartsCase{Dtype::u8, 5, 160, 64, 32, 3, 2, kPackedCodes[0]}})
      check_held(lab, c, held, random);
  }
}

KERNEL_CASE("expert parts: in any groups and calls, the bits of all at once") {
  SKIP_UNLESS_SET_RUNS();
  Random random;
  INFO("seed ", random.seed());
  Lab lab(Set::kName);
  for (const PartsCase& c :
       {PartsCase{Dtype::f8_e4m3, 5, 160, 48, 128, 3, 1}, PartsCase{Dtype::f8_e4m3, 5, 160, 48, 128, 3, 2},
        PartsCase{Dtype::f8_e4m3, 6, 96, 33, 16, 2, 13}, PartsCase{Dtype::bf16, 4, 80, 32, 0, 2, 5},
        PartsCase{Dtype::i8, 4, 36, 17, 9, 2, 3}, PartsCase{Dtype::f16, 4, 33, 17, 0, 2, 3},
        PartsCase{Dtype::f32, 3, 20, 9, 0, 1, 4}, PartsCase{Dtype::u8, 5, 160, 64, 32, 3, 2, kPackedCodes[0]},
        PartsCase{Dtype::u8, 5, 96, 64, 16, 3, 13, kPackedCodes[5]},
        PartsCase{Dtype::u8, 4, 100, 36, 32, 2, 3, kPackedCodes[4]},
        PartsCase{Dtype::u8, 4, 100, 36, 32, 2, 3, kPackedCodes[7]},
        PartsCase{Dtype::u8, 5, 160, 64, 32, 3, 2, kPackedCodes[7]}})
    check_parts(lab, c, random);
}

KERNEL_CASE("expert parts: no groups, and groups of nothing, change nothing") {
  SKIP_UNLESS_SET_RUNS();
  Random random;
  Lab lab(Set::kName);
  const PartsCase c{Dtype::bf16, 2, 16, 8, 0, 2, 2};
  const PutExperts experts(lab, c, random);
  const kernels::Rows parts{.data = lab.poisoned(4 * 16), .rows = 4, .cols = 16, .stride = 16};
  const kernels::ExpertGroup nothing{.entry = 1, .parts = {}};
  for (const std::span<const kernels::ExpertGroup> groups :
       {std::span<const kernels::ExpertGroup>(), std::span<const kernels::ExpertGroup>(&nothing, 1)}) {
    lab.queue().run_expert_parts({.table = experts.table.get(),
                                  .x = experts.x,
                                  .groups = groups,
                                  .top_k = c.top_k,
                                  .scratch = {.buffer = experts.parts_scratch.get(), .offset_bytes = 0},
                                  .parts = parts});
  }
  const auto stored = lab.get(parts.data, 4 * 16);
  CHECK(std::ranges::all_of(stored, is_poison));
}

KERNEL_CASE("queues of a device: what waits for an event of another comes behind it") {
  SKIP_UNLESS_SET_RUNS();
  Random random;
  Lab lab(Set::kName);
  constexpr size_t kCount = 257;
  constexpr int kTurns = 9;
  auto other = lab.device().make_queue();
  auto pinned = lab.device().allocate_host(kTurns * kCount * sizeof(float));
  REQUIRE(pinned);
  const std::vector<float> values = random.normals(kTurns * kCount);
  std::memcpy((*pinned)->host().data(), values.data(), kTurns * kCount * sizeof(float));
  const auto rows = [&](kernels::Slice place) {
    return kernels::Rows{.data = place, .rows = 1, .cols = kCount, .stride = kCount};
  };
  const kernels::Rows slot = rows(lab.poisoned(kCount));
  const kernels::Rows sum = rows(lab.put(std::vector<float>(kCount, 0.0F)));
  const auto begin = lab.queue().mark();
  std::shared_ptr<kernels::Event> used;
  for (int turn = 0; turn < kTurns; ++turn) {
    if (used != nullptr) other->wait(*used);
    other->upload(slot.data, (*pinned)->host().subspan(turn * kCount * sizeof(float), kCount * sizeof(float)));
    const auto arrived = other->mark();
    lab.queue().wait(*arrived);
    lab.queue().add(sum, slot);
    used = lab.queue().mark();
  }
  used->wait();
  CHECK(used->is_reached());
  CHECK(begin->is_reached());
  CHECK(used->seconds_since(*begin) >= 0);
  std::vector<float> wanted(kCount, 0.0F);
  for (int turn = 0; turn < kTurns; ++turn)
    for (size_t i = 0; i < kCount; ++i)
      wanted[i] += values[turn * kCount + i];
  CHECK(lab.get(sum.data, kCount) == wanted);
}

KERNEL_CASE("queue: what is copied to and from memory that the host shares with the device is there in order") {
  SKIP_UNLESS_SET_RUNS();
  Lab lab(Set::kName);
  constexpr size_t kBytes = 40'000;
  auto shared = lab.device().allocate_host(2 * kBytes);
  auto memory = lab.device().allocate(kBytes);
  REQUIRE(shared);
  REQUIRE(memory);
  const std::span<std::byte> host = (*shared)->host();
  Random random;
  // Whole vectors, words, single bytes, odd places.
  for (const auto& [at, bytes] :
       std::vector<std::pair<size_t, size_t>>{{0, kBytes}, {4, 36}, {8, 2048}, {12, 1}, {1, 17}, {3, 4096}, {0, 0}}) {
    CAPTURE(at);
    CAPTURE(bytes);
    std::ranges::generate(host.first(kBytes), [&] { return static_cast<std::byte>(random.below(256)); });
    const std::vector<std::byte> wanted(host.begin() + static_cast<ptrdiff_t>(at),
                                        host.begin() + static_cast<ptrdiff_t>(at + bytes));
    lab.queue().copy({.buffer = memory->get(), .offset_bytes = at}, {.buffer = shared->get(), .offset_bytes = at},
                     bytes);
    lab.queue().copy({.buffer = shared->get(), .offset_bytes = kBytes + at},
                     {.buffer = memory->get(), .offset_bytes = at}, bytes);
    const auto there = lab.queue().mark();
    there->wait();
    CHECK(std::ranges::equal(host.subspan(kBytes + at, bytes), wanted));
  }
}

}  // namespace dspack::test::expert_parts_test
