#include "runtime/text/jinja_source.h"

#include <doctest/doctest.h>

namespace dspack::jinja_source_test {

using namespace dspack;
using namespace dspack::runtime;

namespace {

std::string canonical(std::string_view source) {
  const auto text = canonical_jinja(source);
  REQUIRE_MESSAGE(text.has_value(), source);
  return *text;
}

}  // namespace

TEST_CASE("jinja source: what means the same has one form") {
  const std::pair<const char*, const char*> pairs[] = {
      {"{{a}}", "{{  a\n }}"},
      {"{{ 'x' }}", "{{ \"x\" }}"},
      {"{{ '\\n' }}", "{{ '\n' }}"},
      {"{{ '\"' }}", "{{ \"\\\"\" }}"},
      {"a{{ b }}", "a   {{- b }}"},
      {"{{ b }}a", "{{ b -}}\n\n  a"},
      {"{% if a %}b{% endif %}", "{% if a %}\nb{% endif %}"},      // trim_blocks
      {"{% if a %}b\n{% endif %}", "{% if a %}b\n  {% endif %}"},  // lstrip_blocks
      {"{% if a %}{% endif %}", "  {% if a %}\n\t{% endif %}"},
      {"ab", "a{# comment #}b"},
      {"a", "a\n"},
      {"a\nb", "a\r\nb"},
      {"a", "a\r"},
      {"{{ b }}a", "{{ b }}{# comment #}a"},
      {"{{ {'a': {'b': 1}}['a'] }}", "{{{'a':{'b':1}}['a']}}"},
      {"{%- if a -%}b{%- endif -%}", "{% if a %}b{% endif %}"},
  };
  for (const auto& [a, b] : pairs) {
    CAPTURE(a);
    CAPTURE(b);
    CHECK(canonical(a) == canonical(b));
  }
}

TEST_CASE("jinja source: what does not, has not") {
  const std::pair<const char*, const char*> pairs[] = {
      {"{{ a }}", "{{ b }}"},
      {"{{ ab }}", "{{ a b }}"},
      {"{{ 'a b' }}", "{{ 'a  b' }}"},
      {"{{ a }}", "{% a %}"},
      {"{{ a }}", "{{ 'a' }}"},
      {"a", "a "},
      {"a", "a\n\n"},
      {"a\\nb", "a\nb"},                                          // text outside of strings has no escapes
      {"x {% if a %}{% endif %}", "x{% if a %}{% endif %}"},      // not at the beginning of its line
      {"{% if a +%}\nb{% endif %}", "{% if a %}\nb{% endif %}"},  // + keeps the line feed
      {"{{ a }}\nb", "{{ a }}b"},                                 // expressions keep it too
      {"a{{ 'b' }}", "ab"},
      {"{{ '\\x41' }}", "{{ 'x41' }}"},
      {"{{ a }}[1]b", "{{ a }}b"},
  };
  for (const auto& [a, b] : pairs) {
    CAPTURE(a);
    CAPTURE(b);
    CHECK(canonical(a) != canonical(b));
  }
}

TEST_CASE("jinja source: what cannot be read is refused") {
  for (const char* source :
       {"{{ a", "{% if a }}", "{# a", "{{ 'a }}", "{% raw %}{{ a }}{% endraw %}", "{%", "{{ a -"}) {
    CAPTURE(source);
    CHECK_FALSE(canonical_jinja(source).has_value());
  }
}

}  // namespace dspack::jinja_source_test
