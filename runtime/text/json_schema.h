// A JSON Schema that answers are held to (drafts 7 and 2020-12): its keywords have the form that they must have, its
// references lead to schemas within it, and what it may cost is bounded.
// Threads: immutable. Lifetime: references into it live as long as any copy of it. Errors: invalid (no schema, or too
// large a one), unsupported (a keyword), naming the place within the schema.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "format/base/result.h"
#include "runtime/text/chat_message.h"

namespace dspack::runtime {

/// Bounds on what a stranger's schema may cost; measured with 129,000 tokens.
inline constexpr size_t kMostSchemaBytes = 64U << 10U;  // as JSON
inline constexpr size_t kMostSchemas = 600;             // schemas within the schema
inline constexpr size_t kMostSchemaDepth = 32;          // of them within each other
inline constexpr size_t kMostValues = 1000;             // of all enumerations
inline constexpr size_t kMostPatternBytes = 512;        // of one
inline constexpr size_t kMostPatterns = 20;
inline constexpr uint64_t kMostRepeats = 4096;      // of items or properties, where bounded
inline constexpr uint64_t kMostLength = 1U << 20U;  // of strings, where bounded

class JsonSchema {
 public:
  [[nodiscard]] static Result<JsonSchema> read(const OrderedJson& schema);

  [[nodiscard]] const OrderedJson& root() const { return *root_; }
  /// The schema that the "$ref" of `schema` leads to; null without one.
  [[nodiscard]] const OrderedJson* target(const OrderedJson& schema) const;
  /// A JSON pointer to a schema within this one.
  [[nodiscard]] std::string place(const OrderedJson& schema) const;
  /// An error at a schema within this one.
  [[nodiscard]] Error refuse(ErrorKind kind, const OrderedJson& schema, std::string_view what) const;

 private:
  friend class SchemaReader;
  struct Spot {
    const OrderedJson* parent = nullptr;
    std::string step = {};  // from the parent, as a piece of a JSON pointer
  };
  std::shared_ptr<const OrderedJson> root_;
  std::map<const OrderedJson*, Spot> spots_;                  // of all schemas
  std::map<const OrderedJson*, const OrderedJson*> targets_;  // of those with "$ref"
};

/// The schemas of an array's first items, null if there are none, and that of those behind them, null if nothing is
/// said: "prefixItems" and "items", or in draft 7 "items" and "additionalItems".
[[nodiscard]] const OrderedJson* first_items(const OrderedJson& schema);
[[nodiscard]] const OrderedJson* other_items(const OrderedJson& schema);
/// The member `keyword` of a schema, or null.
[[nodiscard]] const OrderedJson* find_keyword(const OrderedJson& schema, const char* keyword);

}  // namespace dspack::runtime
