#include "runtime/text/bpe.h"

#include <fmt/format.h>
#include <algorithm>
#include <bit>
#include <utility>

#include "format/base/foreign_text.h"
#include "runtime/text/json.h"
#include "runtime/text/vocabulary.h"

namespace dspack::runtime {

void MergeTable::reserve(size_t merges) {
  const size_t slots = std::bit_ceil(std::max<size_t>(16, merges * 2));
  if (slots > slots_.size()) grow(slots);
}

void MergeTable::set(uint32_t left, uint32_t right, Merge merge) {
  reserve(used_ + 1);
  const uint64_t key = key_of(left, right);
  Slot& slot = slots_[place_of(key)];
  used_ += slot.key == kFree ? 1 : 0;
  slot = {key, merge};
}

void MergeTable::grow(size_t slots) {
  std::vector<Slot> before = std::exchange(slots_, std::vector<Slot>(slots));
  for (const Slot& slot : before) {
    if (slot.key != kFree) slots_[place_of(slot.key)] = slot;
  }
}

namespace {

constexpr size_t kMaxCachedWords = 10'000;  // Hugging Face's capacity; at most a few MB
constexpr size_t kMaxCachedBytes = 64;      // longer words hardly ever repeat
constexpr uint32_t kStepsPerLook = 65'536;  // some milliseconds

Error unknown_token(size_t rank, std::string_view token) {
  return {ErrorKind::invalid,
          fmt::format("merge {} needs the token {}, which is not in the vocabulary", rank, quote(token))};
}

}  // namespace

Result<Bpe> Bpe::build(const Vocabulary& vocabulary, const Merges& merges, BpeOptions options) {
  Bpe bpe;
  bpe.load_bytes(vocabulary);
  bpe.merges_.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    const auto left_id = vocabulary.find(left);
    if (!left_id) return unknown_token(rank, left);
    const auto right_id = vocabulary.find(right);
    if (!right_id) return unknown_token(rank, right);
    const auto merged_id = vocabulary.find(left + right);
    if (!merged_id) return unknown_token(rank, left + right);
    // For a pair listed twice the later entry counts, as for Hugging Face.
    bpe.merges_.set(*left_id, *right_id, {static_cast<uint32_t>(rank), *merged_id});
  }
  if (options.ignore_merges) bpe.load_whole_words(vocabulary);
  return bpe;
}

Bpe Bpe::build_ranked(const Vocabulary& vocabulary) {
  Bpe bpe;
  bpe.load_bytes(vocabulary);
  bpe.load_whole_words(vocabulary);
  for (const auto& [bytes, id] : bpe.whole_words_) {
    const std::string_view token = bytes;
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = bpe.whole_words_.find(token.substr(0, cut));
      if (left == bpe.whole_words_.end()) continue;
      const auto right = bpe.whole_words_.find(token.substr(cut));
      if (right == bpe.whole_words_.end()) continue;
      bpe.merges_.set(left->second, right->second, {id, id});
    }
  }
  return bpe;
}

void Bpe::load_bytes(const Vocabulary& vocabulary) {
  for (uint32_t byte = 0; byte < byte_ids_.size(); ++byte) {
    const char value = static_cast<char>(static_cast<unsigned char>(byte));
    byte_ids_[byte] = vocabulary.find(spell_bytes({&value, 1})).value_or(kNoToken);
  }
}

void Bpe::load_whole_words(const Vocabulary& vocabulary) {
  for (uint32_t id = 0; id < vocabulary.size(); ++id) {
    const auto token = vocabulary.token(id);
    if (!token) continue;
    if (auto bytes = unspell_bytes(*token)) whole_words_.emplace(*std::move(bytes), id);
  }
}

Result<void> Bpe::encode(std::string_view word, BpeScratch& scratch, std::vector<uint32_t>& ids) const {
  if (word.empty()) return {};
  if (const auto whole = whole_words_.find(word); whole != whole_words_.end()) {
    ids.push_back(whole->second);
    return {};
  }
  if (const auto known = scratch.words_.find(word); known != scratch.words_.end()) {
    ids.insert(ids.end(), known->second.begin(), known->second.end());
    return {};
  }
  TRY(load_symbols(word, scratch));
  TRY(merge_all(scratch));
  const size_t first = ids.size();
  for (const BpeScratch::Symbol& symbol : scratch.symbols_) {
    if (!symbol.merged_away) ids.push_back(symbol.id);
  }
  if (word.size() <= kMaxCachedBytes && scratch.words_.size() < kMaxCachedWords) {
    const auto begin = ids.begin() + static_cast<std::ptrdiff_t>(first);
    scratch.words_.emplace(word, std::vector<uint32_t>(begin, ids.end()));
  }
  return {};
}

Result<void> Bpe::load_symbols(std::string_view word, BpeScratch& scratch) const {
  const auto count = static_cast<uint32_t>(word.size());
  scratch.symbols_.resize(count);
  for (uint32_t i = 0; i < count; ++i) {
    const auto byte = static_cast<unsigned char>(word[i]);
    const uint32_t id = byte_ids_[byte];
    if (id == kNoToken) {
      return Error{ErrorKind::unsupported, fmt::format("the vocabulary has no token for the byte 0x{:02x}", byte)};
    }
    scratch.symbols_[i] = {id, i == 0 ? BpeScratch::kEnd : i - 1, i + 1 == count ? BpeScratch::kEnd : i + 1, false};
  }
  return {};
}

void Bpe::push_candidate(BpeScratch& scratch, uint32_t left_position) const {
  if (left_position == BpeScratch::kEnd) return;
  const BpeScratch::Symbol& left = scratch.symbols_[left_position];
  if (left.next == BpeScratch::kEnd) return;
  const MergeTable::Merge* merge = merges_.find(left.id, scratch.symbols_[left.next].id);
  if (merge == nullptr) return;
  scratch.heap_.push_back({merge->rank, left_position, merge->merged_id});
  std::push_heap(scratch.heap_.begin(), scratch.heap_.end(), std::greater<>());
}

Result<void> Bpe::merge_all(BpeScratch& scratch) const {
  std::vector<BpeScratch::Symbol>& symbols = scratch.symbols_;
  scratch.heap_.clear();
  for (uint32_t i = 0; i < symbols.size(); ++i)
    push_candidate(scratch, i);
  for (uint32_t steps = 1; !scratch.heap_.empty(); ++steps) {
    if (steps % kStepsPerLook == 0 && scratch.stop.stop_requested())
      return Error{ErrorKind::cancelled, "nobody waits for this text's tokens any more"};
    std::pop_heap(scratch.heap_.begin(), scratch.heap_.end(), std::greater<>());
    const BpeScratch::Candidate best = scratch.heap_.back();
    scratch.heap_.pop_back();
    BpeScratch::Symbol& left = symbols[best.position];
    if (left.merged_away || left.next == BpeScratch::kEnd) continue;
    BpeScratch::Symbol& right = symbols[left.next];
    // The neighbours may have changed since this entry was added. Compared by result, as Hugging Face does.
    const MergeTable::Merge* merge = merges_.find(left.id, right.id);
    if (merge == nullptr || merge->merged_id != best.merged_id) continue;
    left.id = best.merged_id;
    left.next = right.next;
    right.merged_away = true;
    if (left.next != BpeScratch::kEnd) symbols[left.next].previous = best.position;
    push_candidate(scratch, left.previous);
    push_candidate(scratch, best.position);
  }
  return {};
}

}  // namespace dspack::runtime
