// What conversations have in common, and what they left: the KV rows of their tokens in the host's memory and on disk,
// so that a prompt is computed from where it differs from all that came before.
//
// Positions are kept in blocks of kBlockPositions, which form a tree: a block follows all that has the same tokens
// before it, so that conversations that begin alike share what they share, and one that goes on adds only what is new.
// A block is found by comparing token ids, not digests. The last block of a conversation may be shorter, and gives way
// to a longer one; of a block that begins like a prompt the common part is used. Where memory or disk are full the
// block goes that was unused for longest; since a use counts for all that comes before it, that is always the end of a
// conversation. Where a cache has rings (KvExtent), a prompt goes on only after a block that was the end of a
// conversation, or near it, when it was kept, and has all of that block.
//
// Every block is in memory, on disk, or both. What is kept goes to the disk at once where there is one, so that it
// outlives the process whatever ends it.
// Threads: one that calls; counts from any. Lifetime: owns the folder. Errors: none: what cannot be kept or read is
// computed again, and the log is told why.
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
  uint64_t disk_bytes = 0, disk_blocks = 0;      // now; bytes: with files of other models
  uint64_t memory_tokens = 0, disk_tokens = 0;   // taken from there since the start
};

class PrefixCache {
 public:
  /// Positions of a block: of V3 9 MB, which disks read and write at their full speed, and a conversation that forks
  /// within a block stores at most so many twice.
  static constexpr uint32_t kBlockPositions = 64;

  struct Options {
    uint64_t memory_bytes = 0;
    std::unique_ptr<PrefixFolder> folder = {};  // null: none
  };
  PrefixCache(const KvIdentity& identity, Options options, PrefixFolder::Log log);
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  /// Keeps what the sequence holds.
  void keep(const Sequence& sequence);
  /// Appends to a sequence, which holds the first of `tokens`, as many more of them as the cache has; returns how many.
  uint32_t restore(Sequence& sequence, std::span<const uint32_t> tokens);

  /// Drops what a prompt of these tokens would be given, from its first block on, and what else follows that block,
  /// from memory and disk: some of its rows are no good.
  void forget(std::span<const uint32_t> tokens);

  /// Whether what is kept outlives the process.
  [[nodiscard]] bool is_durable() const { return folder_ != nullptr; }
  [[nodiscard]] PrefixCacheCounts counts() const;

 private:
  struct Node;
  using Use = std::list<Node*>;  // the latest first; what comes before a block in a conversation stands before it
  struct Node {
    Node* parent = nullptr;
    std::vector<std::unique_ptr<Node>> children = {};
    format::Digest id;
    uint32_t first = 0;
    std::vector<uint32_t> tokens = {};
    bool goes_on = true;                        // KvExtent
    std::shared_ptr<const KvBlock> block = {};  // null: not in memory
    bool is_on_disk = false;                    // or on its way there
    Use::iterator memory_use = {};              // if it is in memory
    Use::iterator disk_use = {};                // if it is on disk

    [[nodiscard]] uint32_t positions() const { return static_cast<uint32_t>(tokens.size()); }
    [[nodiscard]] KvExtent extent() const { return {.first = first, .end = first + positions(), .goes_on = goes_on}; }
  };

  void index_folder();
  [[nodiscard]] static Node* closest_child(const Node& node, std::span<const uint32_t> tokens);
  /// What a sequence needs to go on after the node, if the sequence has it and the node does not. Not where the node
  /// is on disk: its file stays what it is.
  void complete(Node& node, const Sequence& sequence, uint64_t path_bytes);
  [[nodiscard]] Node* add(Node& parent, const Sequence& sequence, uint32_t count, uint64_t path_bytes);
  [[nodiscard]] bool make_disk_room(const KvExtent& extent, const Node& parent);
  /// Where the cache has rings: cuts a path of nodes that have these tokens so that a sequence can go on after its
  /// last node, which may be one beside the path. Returns that node's end.
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
