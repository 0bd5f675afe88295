// Byte-pair encoding of one word, as in Hugging Face's BPE model and tiktoken: always merges the pair of lowest rank,
// the leftmost first, until no pair has a merge.
// Threads: a Bpe is immutable and thread-safe; a BpeScratch belongs to one thread. Lifetime: a Bpe borrows its
// Vocabulary for build() only. Errors: build: invalid (a merge that names an unknown token); encode: unsupported (a
// byte without a token; Hugging Face would drop it).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <stop_token>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "format/base/result.h"
#include "runtime/text/vocabulary.h"

namespace dspack::runtime {

/// Merges by the pair of ids that they join. A flat table, since it is queried at least once per byte of text.
/// Thread-compatible; const once filled.
class MergeTable {
 public:
  struct Merge {
    uint32_t rank;
    uint32_t merged_id;
  };

  void reserve(size_t merges);
  /// A later merge of the same pair replaces the earlier one.
  void set(uint32_t left, uint32_t right, Merge merge);
  /// nullptr: the pair has no merge.
  [[nodiscard]] const Merge* find(uint32_t left, uint32_t right) const {
    if (slots_.empty()) return nullptr;
    const uint64_t key = key_of(left, right);
    const Slot& slot = slots_[place_of(key)];
    return slot.key == key ? &slot.merge : nullptr;
  }

 private:
  static constexpr uint64_t kFree = UINT64_MAX;  // no pair: ids are less than UINT32_MAX
  struct Slot {
    uint64_t key = kFree;
    Merge merge{};
  };
  static uint64_t key_of(uint32_t left, uint32_t right) { return (uint64_t{left} << 32U) | right; }
  /// Index of `key`, or of the free slot for it: linear probing in a table that is at most half full.
  [[nodiscard]] size_t place_of(uint64_t key) const {
    constexpr uint64_t kSpread = 0x9E3779B97F4A7C15;  // 2^64 / golden ratio: neighbouring ids land far apart
    size_t at = static_cast<size_t>((key * kSpread) >> 20U) & (slots_.size() - 1);
    while (slots_[at].key != key && slots_[at].key != kFree)
      at = (at + 1) & (slots_.size() - 1);
    return at;
  }
  void grow(size_t slots);

  std::vector<Slot> slots_;  // size is a power of two
  size_t used_ = 0;
};

struct BpeOptions {
  bool ignore_merges = false;  // a word that is itself a token becomes that token, whatever the merges are
};

/// Working memory, and a cache of words. Not to be shared between different Bpes.
class BpeScratch {
 public:
  std::stop_token stop = {};  // a word of megabytes takes seconds

 private:
  friend class Bpe;
  static constexpr uint32_t kEnd = UINT32_MAX;
  struct Symbol {
    uint32_t id;
    uint32_t previous;  // index, kEnd if none
    uint32_t next;
    bool merged_away;
  };
  struct Candidate {
    uint32_t rank;
    uint32_t position;
    uint32_t merged_id;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : position > other.position;
    }
  };
  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
  StringMap<std::vector<uint32_t>> words_;
};

class Bpe {
 public:
  using Merges = std::vector<std::pair<std::string, std::string>>;  // best first, in the vocabulary's spelling

  [[nodiscard]] static Result<Bpe> build(const Vocabulary& vocabulary, const Merges& merges, BpeOptions options);

  /// As in tiktoken: two neighbours may be joined if their joined bytes are a token, lowest id first; a word that is a
  /// token becomes that token.
  [[nodiscard]] static Bpe build_ranked(const Vocabulary& vocabulary);

  /// Appends the ids of `word` (bytes, fewer than 2^31). Errors: also cancelled.
  [[nodiscard]] Result<void> encode(std::string_view word, BpeScratch& scratch, std::vector<uint32_t>& ids) const;

 private:
  Bpe() = default;
  void load_bytes(const Vocabulary& vocabulary);
  void load_whole_words(const Vocabulary& vocabulary);
  [[nodiscard]] Result<void> load_symbols(std::string_view word, BpeScratch& scratch) const;
  void push_candidate(BpeScratch& scratch, uint32_t left_position) const;
  [[nodiscard]] Result<void> merge_all(BpeScratch& scratch) const;

  static constexpr uint32_t kNoToken = UINT32_MAX;
  std::array<uint32_t, 256> byte_ids_{};
  MergeTable merges_;
  StringMap<uint32_t> whole_words_;  // tokens by their bytes; empty if merges decide
};

}  // namespace dspack::runtime
