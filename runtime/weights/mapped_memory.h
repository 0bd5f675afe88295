// Memory of the CPU's device over which pages of files can be laid, in place of a copy of their bytes.
// Threads: as a plain array. Errors: budget.
#pragma once

#include <memory>

#include "format/base/page_range.h"
#include "kernels/ops.h"

namespace dspack::runtime {

/// Of at least so many bytes, from a page on.
[[nodiscard]] inline Result<std::unique_ptr<kernels::Buffer>> make_mapped_memory(uint64_t bytes) {
  class Memory final : public kernels::Buffer {
   public:
    explicit Memory(PageRange pages) : pages_(std::move(pages)) {}
    [[nodiscard]] uint64_t size_bytes() const override { return pages_.bytes().size(); }
    [[nodiscard]] std::span<std::byte> host() override { return pages_.bytes(); }

   private:
    PageRange pages_;
  };
  TRY_ASSIGN(PageRange pages, PageRange::make(bytes));
  return std::unique_ptr<kernels::Buffer>(std::make_unique<Memory>(std::move(pages)));
}

}  // namespace dspack::runtime
