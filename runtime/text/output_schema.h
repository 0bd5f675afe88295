// JSON schemas that an answer can be held to. What the grammars that are made of them would pass over or take too long
// for is refused by name: an answer that has been promised to fit a schema fits all of it.
// Threads: pure functions. Errors: invalid (no schema, or too large a one), unsupported (a keyword, or keywords that
// stand together), naming the place within the schema.
#pragma once

#include <cstddef>

#include "format/base/result.h"
#include "runtime/text/chat_message.h"

namespace dspack::runtime {

/// Bounds on what a stranger's schema may cost; measured with 129,000 tokens (output_schema.cpp).
inline constexpr size_t kMostSchemaBytes = 64U << 10U;  // as JSON
inline constexpr size_t kMostSchemas = 600;             // schemas within the schema
inline constexpr size_t kMostSchemaDepth = 32;          // of them within each other
inline constexpr size_t kMostValues = 1000;             // of all enumerations
inline constexpr size_t kMostPatternBytes = 256;        // of one
inline constexpr size_t kMostPatterns = 20;
inline constexpr uint64_t kMostRepeats = 4096;      // of items or properties, where bounded
inline constexpr uint64_t kMostLength = 1U << 20U;  // of strings, where bounded

/// The schema with what it leaves to chance written out: objects and arrays of which nothing is said may hold anything,
/// and objects with properties hold no others, unless the schema says so.
[[nodiscard]] Result<OrderedJson> accept_schema(const OrderedJson& schema);

}  // namespace dspack::runtime
