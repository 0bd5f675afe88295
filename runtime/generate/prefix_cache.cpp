#include "runtime/generate/prefix_cache.h"

#include <algorithm>
#include <map>

#include "format/base/check.h"

namespace dspack::runtime {

namespace {

uint32_t shared_length(std::span<const uint32_t> a, std::span<const uint32_t> b) {
  return static_cast<uint32_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

}  // namespace

PrefixCache::PrefixCache(const KvIdentity& identity, Options options, PrefixFolder::Log log)
    : shape_(identity.shape),
      memory_limit_(options.memory_bytes),
      folder_(std::move(options.folder)),
      log_(std::move(log)) {
  root_.id = identity.digest;
  if (folder_) index_folder();
  publish();
}

PrefixCache::~PrefixCache() {
  if (!folder_) return;
  std::vector<format::Digest> ids;
  for (const Node* node : on_disk_)
    ids.push_back(node->id);
  std::ranges::reverse(ids);
  folder_->remember_use(ids);
}

// Removes blocks whose parent is missing: they can never be used.
void PrefixCache::index_folder() {
  std::vector<PrefixFolder::Stored> stored = folder_->take_stored();
  std::vector<size_t> by_place(stored.size());
  for (size_t i = 0; i < stored.size(); ++i)
    by_place[i] = i;
  std::ranges::stable_sort(by_place, {}, [&](size_t i) { return stored[i].first; });
  std::map<format::Digest, Node*> known = {{root_.id, &root_}};
  for (const size_t i : by_place) {
    PrefixFolder::Stored& entry = stored[i];
    const auto parent = known.find(entry.parent);
    const auto positions = static_cast<uint32_t>(entry.tokens.size());
    const bool follows = parent != known.end() && positions <= kBlockPositions &&
                         (parent->second == &root_ || parent->second->positions() == kBlockPositions) &&
                         parent->second->first + parent->second->positions() == entry.first;
    if (!follows) {
      folder_->remove(entry.id, {entry.first, entry.first + positions, entry.goes_on});
      continue;
    }
    auto node = std::make_unique<Node>();
    node->parent = parent->second;
    node->id = entry.id;
    node->first = entry.first;
    node->tokens = std::move(entry.tokens);
    node->goes_on = entry.goes_on;
    put_on_disk(*node);
    known[entry.id] = node.get();
    parent->second->children.push_back(std::move(node));
  }
  for (const PrefixFolder::Stored& entry : stored)  // least recently used first
    if (const auto node = known.find(entry.id); node != known.end()) touch(*node->second);
}

/// The child with the most tokens in common; nullptr: none has any.
PrefixCache::Node* PrefixCache::closest_child(const Node& node, std::span<const uint32_t> tokens) {
  Node* closest = nullptr;
  uint32_t most = 0;
  for (const auto& child : node.children) {
    const uint32_t common = shared_length(child->tokens, tokens);
    if (common <= most) continue;
    closest = child.get();
    most = common;
  }
  return closest;
}

void PrefixCache::keep(const Sequence& sequence) {
  const auto tokens = sequence.tokens();
  Node* node = &root_;
  uint64_t path_bytes = 0;  // this conversation's blocks in memory
  for (uint32_t first = 0; first < tokens.size();) {
    const auto part = tokens.subspan(first, std::min<size_t>(kBlockPositions, tokens.size() - first));
    Node* child = closest_child(*node, part);
    if (child == nullptr || shared_length(child->tokens, part) < part.size()) {
      child = add(*node, sequence, static_cast<uint32_t>(part.size()), path_bytes);
    } else if (child->positions() == part.size()) {
      complete(*child, sequence, path_bytes);
    }
    if (child == nullptr) break;
    if (child->block) path_bytes += bytes_of(*child);
    node = child;
    first += static_cast<uint32_t>(part.size());
  }
  touch(*node);
  publish();
}

void PrefixCache::complete(Node& node, const Sequence& sequence, uint64_t path_bytes) {
  const bool is_better = !node.goes_on && sequence.cut_point(node.extent().end) != 0;
  if (!is_better || node.is_on_disk || node.block == nullptr) return;
  KvExtent extent = node.extent();
  extent.goes_on = true;
  if (path_bytes + shape_.block_bytes(extent) > memory_limit_) return;
  auto block = sequence.read_block(node.first, node.positions());
  if (!block) return log_(block.error());
  now_.memory_bytes -= bytes_of(node);
  node.goes_on = true;
  node.block = std::make_shared<const KvBlock>(*std::move(block));
  now_.memory_bytes += bytes_of(node);
  touch(node);
  trim_memory();
}

/// Adds a block of `count` positions of the sequence after `parent`, which were not kept before. nullptr: no room, or
/// they could not be read.
PrefixCache::Node* PrefixCache::add(Node& parent, const Sequence& sequence, uint32_t count, uint64_t path_bytes) {
  touch(parent);
  const uint32_t first = parent.first + parent.positions();
  const KvExtent extent{.first = first, .end = first + count, .goes_on = sequence.cut_point(first + count) != 0};
  const bool goes_to_disk = folder_ && (&parent == &root_ || parent.is_on_disk) && make_disk_room(extent, parent);
  // If a conversation is too long for the memory, its beginning is kept, not its end.
  if (!goes_to_disk && path_bytes + shape_.block_bytes(extent) > memory_limit_) return nullptr;
  auto block = sequence.read_block(first, count);
  if (!block) {
    log_(block.error());
    return nullptr;
  }
  auto made = std::make_unique<Node>();
  Node* const node = made.get();
  node->parent = &parent;
  node->id = block_id(parent.id, block->tokens);
  node->first = block->first;
  node->tokens = block->tokens;
  node->goes_on = block->goes_on;
  parent.children.push_back(std::move(made));
  const auto kept = std::make_shared<const KvBlock>(*std::move(block));
  if (goes_to_disk) {
    folder_->write(node->id, parent.id, kept);
    put_on_disk(*node);
  }
  put_in_memory(*node, kept);
  touch(*node);
  // A block that is a beginning of this one is redundant, unless it has ring rows to continue after it, which this one
  // lacks there.
  for (size_t i = 0; i < parent.children.size();) {
    Node& other = *parent.children[i];
    const bool is_covered = &other != node && shared_length(other.tokens, node->tokens) == other.tokens.size() &&
                            !(shape_.has_rings() && other.goes_on);
    is_covered ? drop(other) : void(++i);
  }
  trim_memory();
  return node;
}

/// Evicts blocks from disk. Blocks before the new one were just used, and stay.
bool PrefixCache::make_disk_room(const KvExtent& extent, const Node& parent) {
  while (!folder_->has_room(extent)) {
    if (on_disk_.empty() || on_disk_.back() == &parent) return false;
    leave_disk(*on_disk_.back());
  }
  return true;
}

uint32_t PrefixCache::restore(Sequence& sequence, std::span<const uint32_t> tokens) {
  std::vector<Node*> path;
  uint32_t found = 0;
  uint64_t path_bytes = 0;  // in memory
  for (Node* node = &root_; found < tokens.size() && found % kBlockPositions == 0;) {
    Node* child = closest_child(*node, tokens.subspan(found));
    if (child == nullptr) break;
    path.push_back(child);
    found += shared_length(child->tokens, tokens.subspan(found));
    if (child->block) path_bytes += bytes_of(*child);
    node = child;
  }
  const uint32_t before = sequence.length();
  if (shape_.has_rings()) found = cut_to_resumable(path, tokens);
  if (found <= before) return 0;
  if (shape_.has_rings()) sequence.truncate(0);  // only whole blocks can be appended
  touch(*path.back());
  for (Node* node : path) {
    const uint32_t end = std::min(node->first + node->positions(), found);
    const uint32_t begin = sequence.length();
    if (end <= begin) continue;
    const bool is_in_memory = node->block != nullptr;
    const auto block = load(*node, path_bytes);
    if (!block) {
      drop(*node);
      break;
    }
    if (const auto done = sequence.append(*block, end); !done) {
      log_(done.error());
      break;
    }
    (is_in_memory ? now_.memory_tokens : now_.disk_tokens) += end - begin;
  }
  // After a failure it may end with a block that nothing can continue from.
  if (sequence.cut_point(sequence.length()) != sequence.length()) sequence.truncate(0);
  publish();
  return sequence.length() - std::min(before, sequence.length());
}

uint32_t PrefixCache::cut_to_resumable(std::vector<Node*>& path, std::span<const uint32_t> tokens) {
  while (!path.empty()) {
    Node* longest = nullptr;
    for (const auto& node : path.back()->parent->children) {
      const auto here = tokens.subspan(node->first);
      const bool has_all = node->goes_on && shared_length(node->tokens, here) == node->positions();
      if (has_all && (longest == nullptr || longest->positions() < node->positions())) longest = node.get();
    }
    path.pop_back();
    if (longest == nullptr) continue;
    path.push_back(longest);
    return longest->extent().end;
  }
  return 0;
}

void PrefixCache::forget(std::span<const uint32_t> tokens) {
  if (Node* const begin = closest_child(root_, tokens)) drop(*begin);
  publish();
}

/// The node's block; null: it cannot be read. Puts it into memory if that evicts no block of its own conversation.
std::shared_ptr<const KvBlock> PrefixCache::load(Node& node, uint64_t& path_bytes) {
  if (node.block) return node.block;
  auto block = folder_->read(node.id);
  if (block && ((*block)->first != node.first || (*block)->tokens != node.tokens)) {
    block = Error{ErrorKind::corrupt, "it is of another place in a conversation than it was at the start"};
  }
  if (!block) {
    log_({block.error().kind, "a saved prefix is left out and removed: " + block.error().message});
    return nullptr;
  }
  if (path_bytes + bytes_of(node) <= memory_limit_) {
    path_bytes += bytes_of(node);
    put_in_memory(node, *block);
    touch(node);
    trim_memory();
  }
  return *block;
}

void PrefixCache::put_in_memory(Node& node, std::shared_ptr<const KvBlock> block) {
  node.block = std::move(block);
  node.memory_use = in_memory_.insert(in_memory_.begin(), &node);
  now_.memory_bytes += bytes_of(node);
  ++now_.memory_blocks;
}

void PrefixCache::put_on_disk(Node& node) {
  node.is_on_disk = true;
  node.disk_use = on_disk_.insert(on_disk_.begin(), &node);
  ++now_.disk_blocks;
}

void PrefixCache::touch(Node& node) {
  for (Node* each = &node; each != &root_; each = each->parent) {
    if (each->block) in_memory_.splice(in_memory_.begin(), in_memory_, each->memory_use);
    if (each->is_on_disk) on_disk_.splice(on_disk_.begin(), on_disk_, each->disk_use);
  }
}

void PrefixCache::trim_memory() {
  while (now_.memory_bytes > memory_limit_)
    leave_memory(*in_memory_.back());
}

void PrefixCache::leave_memory(Node& node) {
  now_.memory_bytes -= bytes_of(node);
  --now_.memory_blocks;
  in_memory_.erase(node.memory_use);
  node.block.reset();
  if (!node.is_on_disk) drop(node);
}

void PrefixCache::leave_disk(Node& node) {
  folder_->remove(node.id, node.extent());
  --now_.disk_blocks;
  on_disk_.erase(node.disk_use);
  node.is_on_disk = false;
  if (!node.block) drop(node);
}

/// Drops the node, and all after it, which cannot be used without it.
void PrefixCache::drop(Node& node) {
  while (!node.children.empty())
    drop(*node.children.back());
  if (node.block) {
    now_.memory_bytes -= bytes_of(node);
    --now_.memory_blocks;
    in_memory_.erase(node.memory_use);
  }
  if (node.is_on_disk) {
    folder_->remove(node.id, node.extent());
    --now_.disk_blocks;
    on_disk_.erase(node.disk_use);
  }
  auto& siblings = node.parent->children;
  siblings.erase(std::ranges::find(siblings, &node, [](const auto& each) { return each.get(); }));
}

void PrefixCache::publish() {
  now_.disk_bytes = folder_ ? folder_->bytes() : 0;
  const std::lock_guard lock(mutex_);
  published_ = now_;
}

PrefixCacheCounts PrefixCache::counts() const {
  const std::lock_guard lock(mutex_);
  return published_;
}

}  // namespace dspack::runtime
