#include "runtime/generate/constraint_compiler.h"

namespace dspack::runtime {

bool ConstraintCompiler::is_available() {
  return false;
}

Result<std::unique_ptr<ConstraintCompiler>> ConstraintCompiler::make(const Tokenizer& /*tokenizer*/, uint32_t /*vocab*/,
                                                                     std::span<const uint32_t> /*end_tokens*/) {
  return Error{ErrorKind::unsupported,
               "this dsrun was built without xgrammar, which holds answers to a form (docs/install.md)"};
}

}  // namespace dspack::runtime
