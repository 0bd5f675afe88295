// Keeps the KV rows of conversations in host memory and on disk, so that a prompt is only computed from where it
// differs from all earlier ones.
//
// Positions are kept in blocks of kBlockPositions, which form a tree:
//
//   root -- [tokens 0..63] -- [64..127] -- [128..140]    a conversation, its last block shorter
//                        \-- [64..127] -- ..             another one with the same beginning
//
// A block follows the blocks of all tokens before it, so conversations with a common beginning share its blocks, and
// one that continues adds only new blocks. Blocks are found by comparing token ids, not digests. A shorter last block
// is replaced by a longer one; of a block that begins like a prompt the common part is used. If memory or disk is full,
// the least recently used block is evicted; since using a block also uses all blocks before it, that is always the end
// of a conversation. If a cache has rings (KvExtent), a prompt can only continue after a whole block that was the end
// of a conversation, or near it, when it was kept.
//
// Every block is in memory, on disk, or both. If there is a disk, blocks are written to it at once, so they survive any
// end of the process.
// Threads: one caller; counts from any. Lifetime: owns the folder. Errors: none: rows that cannot be kept or read are
// computed again, and the log receives the reason.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "runtime/generate/prefix_folder.h"
#include "runtime/model/sequence.h"

namespace dspack::runtime {

struct PrefixCacheCounts {
  uint64_t memory_bytes = 0, memory_blocks = 0;  // now
  uint64_t disk_bytes = 0, disk_blocks = 0;      // now; bytes include files of other models
  uint64_t memory_tokens = 0, disk_tokens = 0;   // restored from there since the start
};

class PrefixCache {
 public:
  /// Positions per block. V3: 9 MB, enough for a disk's full speed; a conversation that forks within a block stores at
  /// most this many positions twice.
  static constexpr uint32_t kBlockPositions = 64;

  struct Options {
    uint64_t memory_bytes = 0;
    std::unique_ptr<PrefixFolder> folder = {};  // null: no disk
  };
  PrefixCache(const KvIdentity& identity, Options options, PrefixFolder::Log log);
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  /// Keeps the sequence's positions.
  void keep(const Sequence& sequence);
  /// Appends kept positions of `tokens` to a sequence that holds the first of them; returns how many were added.
  uint32_t restore(Sequence& sequence, std::span<const uint32_t> tokens);

  /// Drops the first block that a prompt of these tokens would use, and all blocks after it, from memory and disk: some
  /// of its rows are bad.
  void forget(std::span<const uint32_t> tokens);

  /// Whether kept blocks outlive the process.
  [[nodiscard]] bool is_durable() const { return folder_ != nullptr; }
  [[nodiscard]] PrefixCacheCounts counts() const;

 private:
  struct Node;
  using Use = std::list<Node*>;  // the latest first; a block comes after its parent
  struct Node {
    Node* parent = nullptr;
    std::vector<std::unique_ptr<Node>> children = {};
    format::Digest id;
    uint32_t first = 0;
    std::vector<uint32_t> tokens = {};
    bool goes_on = true;                        // KvExtent
    std::shared_ptr<const KvBlock> block = {};  // null: not in memory
    bool is_on_disk = false;                    // or queued to be written
    Use::iterator memory_use = {};              // if it is in memory
    Use::iterator disk_use = {};                // if it is on disk

    [[nodiscard]] uint32_t positions() const { return static_cast<uint32_t>(tokens.size()); }
    [[nodiscard]] KvExtent extent() const { return {.first = first, .end = first + positions(), .goes_on = goes_on}; }
  };

  void index_folder();
  [[nodiscard]] static Node* closest_child(const Node& node, std::span<const uint32_t> tokens);
  /// Adds the ring rows that are needed to continue after the node, if the sequence has them and the node does not. Not
  /// if the node is on disk: its file is not rewritten.
  void complete(Node& node, const Sequence& sequence, uint64_t path_bytes);
  [[nodiscard]] Node* add(Node& parent, const Sequence& sequence, uint32_t count, uint64_t path_bytes);
  [[nodiscard]] bool make_disk_room(const KvExtent& extent, const Node& parent);
  /// For a cache with rings: cuts a path of nodes with these tokens so that a sequence can continue after its last
  /// node, which may be a sibling of one in the path. Returns that node's end.
  [[nodiscard]] static uint32_t cut_to_resumable(std::vector<Node*>& path, std::span<const uint32_t> tokens);
  void put_in_memory(Node& node, std::shared_ptr<const KvBlock> block);
  void put_on_disk(Node& node);
  [[nodiscard]] std::shared_ptr<const KvBlock> load(Node& node, uint64_t& path_bytes);
  void touch(Node& node);
  void trim_memory();
  void leave_memory(Node& node);
  void leave_disk(Node& node);
  void drop(Node& node);
  [[nodiscard]] uint64_t bytes_of(const Node& node) const { return shape_.block_bytes(node.extent()); }
  void publish();

  KvShape shape_;
  uint64_t memory_limit_;
  std::unique_ptr<PrefixFolder> folder_;
  PrefixFolder::Log log_;
  Node root_;
  Use in_memory_, on_disk_;
  PrefixCacheCounts now_;

  mutable std::mutex mutex_;
  PrefixCacheCounts published_;  // guarded by mutex_
};

}  // namespace dspack::runtime
