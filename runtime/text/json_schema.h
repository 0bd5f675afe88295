// A JSON Schema that answers are held to (drafts 7 and 2020-12), checked on reading: keywords are well-formed,
// references lead to schemas within it, and its cost is bounded.
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

/// Limits on the cost of an untrusted schema; measured with 129,000 tokens.
inline constexpr size_t kMaxSchemaBytes = 64U << 10U;  // as JSON
inline constexpr size_t kMaxSchemas = 600;             // schemas within the schema
inline constexpr size_t kMaxSchemaDepth = 32;          // nesting of schemas
inline constexpr size_t kMaxValues = 1000;             // sum over all enumerations
inline constexpr size_t kMaxSchemaPatternBytes = 512;  // per pattern
inline constexpr size_t kMaxPatterns = 20;
inline constexpr uint64_t kMaxRepeats = 4096;      // bounds on items or properties
inline constexpr uint64_t kMaxLength = 1U << 20U;  // bounds on the length of strings

class JsonSchema {
 public:
  [[nodiscard]] static Result<JsonSchema> read(const OrderedJson& schema);

  [[nodiscard]] const OrderedJson& root() const { return *root_; }
  /// The target of the "$ref" in `schema`; nullptr: it has none.
  [[nodiscard]] const OrderedJson* target(const OrderedJson& schema) const;
  /// The JSON pointer to a schema within this one.
  [[nodiscard]] std::string place(const OrderedJson& schema) const;
  /// An error that names the place of a schema within this one.
  [[nodiscard]] Error refuse(ErrorKind kind, const OrderedJson& schema, std::string_view what) const;

 private:
  friend class SchemaReader;
  struct Spot {
    const OrderedJson* parent = nullptr;
    std::string step = {};  // step of the JSON pointer from the parent
  };
  std::shared_ptr<const OrderedJson> root_;
  std::map<const OrderedJson*, Spot> spots_;                  // place of every schema
  std::map<const OrderedJson*, const OrderedJson*> targets_;  // schema with "$ref" -> its target
};

/// The schemas of an array's first items, and the schema of the items after them: "prefixItems" and "items", or in
/// draft 7 "items" and "additionalItems". nullptr: the schema has none.
[[nodiscard]] const OrderedJson* first_items(const OrderedJson& schema);
[[nodiscard]] const OrderedJson* other_items(const OrderedJson& schema);
/// The member `keyword` of a schema; nullptr: absent.
[[nodiscard]] const OrderedJson* find_keyword(const OrderedJson& schema, const char* keyword);

}  // namespace dspack::runtime
