// Expected texts are those of Jinja 3.1 as transformers sets it up.
#include "runtime/text/chat_template.h"
#include "runtime/text/jinja/program.h"

#include "golden.h"

namespace dspack::jinja_test {

using namespace dspack;
using namespace dspack::runtime;
using namespace dspack::runtime::testing;

namespace {

Result<std::string> rendered(std::string_view source, const std::string& variables = "{}",
                             jinja::Cost* cost = nullptr) {
  const auto program = jinja::Program::compile(source);
  if (!program) return program.error();
  std::tm now{};
  now.tm_year = 124;
  now.tm_mday = 26;
  now.tm_mon = 6;
  return program->render(OrderedJson::parse(variables), now, {}, cost);
}

}  // namespace

TEST_CASE("jinja: statements and expressions") {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"a{# c #}b\n", "ab"},
      {"{% if true %}\n  x\n{% endif %}\ny", "  x\ny"},
      {"a  {%- if 1 -%}  b  {%- endif %} c", "ab c"},
      {"{% raw %}{{ x }}{% endraw %}", "{{ x }}"},
      {"{% for x in [1, 2, 3] if x != 2 %}{{ loop.index }}:{{ x }}{{ ',' if not loop.last }}{% endfor %}", "1:1,2:3"},
      {"{% for x in [] %}{% else %}none{% endfor %}", "none"},
      {"{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i > 3 %}{% break %}{% endif %}{{ i }}{% "
       "endfor %}",
       "023"},
      {"{% set m = namespace(r='x') %}{% for e in [m] + [{'r': 'y'}] %}{{ e.r }}{% endfor %}{{ [m] == [m] }}",
       "xyTrue"},
      {"{% set ns = namespace(n=0) %}{% for i in range(4) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", "6"},
      {"{% set x = 1 %}{% for i in [2] %}{% set x = i %}{% endfor %}{{ x }}", "1"},
      {"{% macro m(a, b=2) %}{{ a }}-{{ b }}{{ caller() if caller }}{% endmacro %}{{ m(1) }}{% call m(3, b=4) %}!{% "
       "endcall %}",
       "1-23-4!"},
      {"{% set t | upper %}ab{% endset %}{{ t }}{% filter trim %}  z {% endfilter %}", "ABz"},
      {"{% generation %}x{% endgeneration %}", "x"},
      {"{{ 7 // -2 }} {{ -7 % 3 }} {{ 2 ** 3 }} {{ 1 / 2 }} {{ 1 ~ 'a' ~ none }} {{ 1 < 2 < 3 }}",
       "-4 2 8 0.5 1aNone True"},
      {"{{ 'abc'[::-1] }}{{ [1, 2, 3][-1] }}{{ 'äöü'[1] }}{{ 'b' in 'abc' }}{{ 4 not in [4] }}", "cba3öTrueFalse"},
      {"{{ {'a': [1, 2.0, 'x', none, true]} }}", "{'a': [1, 2.0, 'x', None, True]}"},
      {"{{ {'b': 1, 'a': ['ü<', 1.0]} | tojson }}", R"({"b": 1, "a": ["ü<", 1.0]})"},
      {"{{ [1, {'a': []}] | tojson(indent=2) }}", "[\n  1,\n  {\n    \"a\": []\n  }\n]"},
      {"{{ missing }}|{{ missing is defined }}|{{ missing | default('d') }}", "|False|d"},
      {"{{ '' | default('d') }}|{{ '' | default('d', true) }}|{{ 'a' | default('d', boolean=true) }}", "|d|a"},
      {"{{ '\\101\\60\\8' }}{{ (-1) ** 3 }}{{ (-1) ** 4 }}", "A0\\8-11"},
      {"{{ ['', 'a'] | map('default', 'd', boolean=true) | join }}", "da"},
      {"{{ [1] | attr('x') is defined }}{{ 'a' | attr('upper') is defined }}", "FalseFalse"},
      {"{{ ' a b '.strip().split(' ') }}{{ 'a-b'.replace('-', '+') }}{{ 'ab'.startswith(('x', 'a')) }}",
       "['a', 'b']a+bTrue"},
      {"{{ [{'k': 2}, {'k': 1}] | map(attribute='k') | sort | join(', ') }}", "1, 2"},
      {"{{ [{'r': 'u'}, {'r': 's'}] | selectattr('r', 'equalto', 's') | list | length }}", "1"},
      {"{{ strftime_now('%d %b %Y') }}", "26 Jul 2024"},
      {"{{ {'a': {}} }}", "{'a': {}}"},
      {"{{ 'any' if [] | select }}", "any"},  // a generator, which is true
      {"{% for k, v in {'x': 1}.items() %}{{ k }}{{ v }}{% endfor %}", "x1"},
      {"{{ '{} {}'.format('a', 1) }}{{ '{1}{0}{{}}{k}'.format('a', 2, k=none) }}", "a 12a{}None"},
      {"{{ 'a b-c (d' | title }}{{ 'a,b c_d' | wordcount }}{{ 'x,y'.title() }}", "A B-C (D3X,Y"},
      {"{{ 'straße' | upper }} {{ 'ÉCOLE ΑΣ. ΑΣΑ' | lower }} {{ 'ǆ É' | title }} {{ 'ǆ É'.title() }}",
       "STRASSE école ας. ασα Ǆ É ǅ É"},
      {"{{ 'İŉ'.lower() }} {{ 'ŉ' | upper }} {{ 'ﬁn d’été' | capitalize }} {{ 'ß Ǆa Σ'.swapcase() }}",
       "i̇ŉ ʼN Fin d’été SS ǆA σ"},
      {"{{ ['É', 'a', 'é'] | unique | join }}{{ ['Ü', 'z', 'ä'] | sort | join }}", "ÉazäÜ"},
      {"{{ ['½'.isnumeric(), '½'.isdigit(), '²'.isdigit(), '²'.isdecimal(), '٣'.isdecimal(), '一'.isnumeric()] }}",
       "[True, False, True, False, True, True]"},
      {"{{ ['½'.isalnum(), 'Ⅷ'.isupper(), 'ª'.islower(), 'ǅa'.istitle(), 'Éa B'.istitle(), 'ÉA'.istitle()] }}",
       "[True, True, True, True, True, False]"},
      {"{{ ['\x1c'.isspace(), ''.isascii(), 'é'.isascii(), 'ǅ'.isupper(), '1'.islower()] }}",
       "[True, True, False, False, False]"},
      {"{{ {'a': '<ü>'} | safe | tojson }} {{ 'x' | safe | tojson }} {{ none | safe | length }}",
       R"("{'a': '<ü>'}" "x" 4)"},
      {"{{ 'foo bar baz qux' | truncate(9) }}|{{ 'foo bar baz qux' | truncate(9, true) }}|{{ 'foo bar baz qux' | "
       "truncate(11) }}|{{ 'foo bar baz qux' | truncate(11, false, '…', 0) }}|{{ 'äöüäöüäöüä' | truncate(4, leeway=0) "
       "}}",
       "foo...|foo ba...|foo bar baz qux|foo bar…|ä..."},
      {"{{ '%5.2f|%-6d|%+d|% d|%05d|%x|%#X|%o|%e|%g|%G|%i%%' % (3.14159, 42, 5, 5, -42, 255, 255, 8, 12345.678, 1e-7, "
       "1e20, 7.9) }}",
       " 3.14|42    |+5| 5|-0042|ff|0XFF|10|1.234568e+04|1e-07|1E+20|7%"},
      {"{{ '%(a)s-%(b)5.1f' % {'a': 'x', 'b': 2} }} {{ '%(a)s' | format(a=1) }} {{ '%*d|%-*d|%.*f' % (4, 1, 4, 1, 1, "
       "2) }}",
       "x-  2.0 1    1|1   |2.0"},
      {"{{ '%6s|%-6s|%.2s|%c|%c|%a' % ('äö', 'äö', 'äöü', 228, 'ß', 'ü😀') }}",
       "    äö|äö    |äö|ä|ß|'\\xfc\\U0001f600'"},
      {"{{ '%s' % [1, 2] }}{{ 'x' % [1] }}{{ 'x' % {} }}{{ '%08.3f|%#x|%#010x|%+06.1f' % (-1.5, 1, 255, 2) }}",
       "[1, 2]xx-001.500|0x1|0x000000ff|+002.0"},
      {"{{ '%d %+i %d %d %#.0g' % (1e20, -1e19, -0.5, -7.9, 2.25) }}",
       "100000000000000000000 -10000000000000000000 0 -7 2."},
      {"{{ '%f %F %5.0f %#.0f %.3g %#g' % (1e400, -1e400, 2.5, 2, 1234.5, 1) }}", "inf -INF     2 2. 1.23e+03 1.00000"},
      {"{{ 0.0 // -2 }} {{ 0.0 % -2 }} {{ '好'.zfill(3) }} {{ '好'.isalpha() }} {{ 5 is lower }}",
       "-0.0 -0.0 00好 True False"},
  };
  for (const auto& [source, expected] : cases) {
    CAPTURE(source);
    const auto text = rendered(source);
    REQUIRE_MESSAGE(text.has_value(), (text ? "" : text.error().message));
    CHECK(*text == expected);
  }
}

TEST_CASE("jinja: what a template can be told are the names that it does not give itself") {
  const auto inputs = [](std::string_view source) {
    const auto program = jinja::Program::compile(source);
    REQUIRE(program);
    std::string names;
    for (const std::string& name : program->inputs())
      names += name + " ";
    return names;
  };
  CHECK(inputs("{% with a = x, b = a %}{{ a }}{{ b }}{% endwith %}{{ b }}") == "b x ");
  CHECK(inputs("{% for i, j in xs if i %}{{ i }}{{ j }}{{ loop.index }}{% else %}{{ i }}{% endfor %}") == "i xs ");
  CHECK(inputs("{% set a = y %}{{ a }}{% if z %}{% set c = 1 %}{% endif %}{{ c }}") == "c y z ");
  CHECK(inputs("{% if z %}{% set c = 1 %}{% else %}{% set c = 2 %}{% endif %}{{ c }}") == "z ");
  CHECK(inputs("{% macro m(a, d=w) %}{{ a }}{{ d }}{{ v }}{% endmacro %}{{ m(u) }}{{ range(3) }}") == "u v w ");
}

TEST_CASE("jinja: failures say the line and the reason") {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"\n{% if x %}", "line 2"},
      {"{{ x.y }}", "'x' is undefined"},
      {"\n\n{{ {}.a.b }}", "line 3: 'dict object' has no attribute 'a'"},
      {"{{ raise_exception('no tools') }}", "no tools"},
      {"{{ 'a' + 1 }}", "concatenate"},
      {"{{ [].append(1) }}", "append"},
      {"{% include 'x' %}", "other templates"},
      {"{{ 1 | nope }}", "no filter"},
      {"{{ 1 / 0 }}", "zero"},
      {"{{ [1] | map('string') | length }}", "no len()"},
      {"{{ [1] | reverse | tojson }}", "not JSON"},
      {"{{ '{} {0}'.format(1) }}", "with and without numbers"},
      {"{{ '{} {}'.format(1) }}", "too few"},
      {"{{ '{k}'.format(1) }}", "no argument"},
      {"{{ '{'.format(1) }}", "without its"},
      {"{{ '}'.format(1) }}", "without its"},
      {"{{ '{:>5}'.format(1) }}", "specification"},
      {"{{ '{0.real}'.format(1) }}", "attribute"},
      {"{% set x = 5 %}{{ x[0:1] }}", "no slices"},
      {"{{ 1e30 | int }}", "64 bits"},
      {"{{ 1e200 ** 2 }}", "out of range"},
      {"{{ 5 | indent }}", "not a str"},
      {"{{ '%d' % 'x' }}", "a real number is required, not str"},
      {"{{ '%x' % 1.5 }}", "an integer is required, not float"},
      {"{{ '%y' % 1 }}", "unsupported format character \"y\" at index 1"},
      {"{{ '%5' % 1 }}", "incomplete format"},
      {"{{ '%(a' % {} }}", "incomplete format key"},
      {"{{ '%(a)s' % {} }}", "\"a\""},
      {"{{ '%(a)s' % 1 }}", "requires a mapping"},
      {"{{ '%s %s' % 1 }}", "not enough arguments"},
      {"{{ '%s' % (1, 2) }}", "not all arguments"},
      {"{{ '%999999999d' % 1 }}", "columns"},
      {"{{ '%c' % 'ab' }}", "%c requires"},
      {"{{ '%s' | format(1, a=2) }}", "positional and keyword"},
      {"{{ 'abc' | truncate(2) }}", "expected length >= 3, got 2"},
      {"{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "so many"},
      {"{% macro m() %}{% endmacro %}{% call m() %}x{% endcall %}", "its caller"},
  };
  for (const auto& [source, part] : cases) {
    CAPTURE(source);
    const auto text = rendered(source);
    REQUIRE_FALSE(text.has_value());
    CAPTURE(text.error().message);
    CHECK(text.error().message.find(part) != std::string::npos);
  }
}

TEST_CASE("jinja: hostile templates end") {
  std::string brackets;
  std::string blocks;
  std::string sum = "{{ 1";
  for (int i = 0; i < 100'000; ++i) {
    brackets += '(';
    blocks += "{% if 1 %}";
    sum += " + 1";
  }
  const std::vector<std::string> hostile = {
      "{% for i in range(10**9) %}x{% endfor %}",
      "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
      "{{ 'a' * 10**12 }}",
      "{% set ns = namespace(s='ab') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
      "{% set ns = namespace(s='ab') %}{% for i in range(99) %}{% set ns.s = ns.s.replace('a', 'aa') %}{% endfor %}",
      "{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% endfor %}",
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% macro m(x) %}{% if 1 %}{% if 1 %}{% if 1 %}{{ 1 + (1 + (1 + (m(x) | length))) }}{% endif %}{% endif %}{% "
      "endif %}"
      "{% endmacro %}{{ m(1) }}",
      // Equal, in two trees of 2^99 leaves.
      "{% set a = namespace(x=[1], y=[1]) %}{% for i in range(99) %}{% set a.x = [a.x, a.x] %}{% set a.y = [a.y, a.y] "
      "%}"
      "{% endfor %}{{ a.x == a.y }}",
      "{% set x = range(99999) | list %}{% set y = range(99999) | list %}{% for i in x %}{{ x == y }}{% endfor %}",
      "{% set a = namespace(s=[]) %}{% set a.s = [a] %}",
      "{% set a = namespace(s=[]) %}{% set a.s = [1, [2, (a,)]] | reverse | list %}",
      "{% for i in [1] %}{{ loop.changed([loop]) }}{% endfor %}",
      "{{ 10 ** 30 }}",
      // 2^64 - 2 bytes, which are few with a few more; and as many items.
      "{{ 'ab' * 9223372036854775807 }}",
      "{{ [1, 2] * 9223372036854775807 }}",
      "{{ " + brackets + "1" + std::string(brackets.size(), ')') + " }}",
      blocks,
      sum + " }}",
  };
  for (const std::string& source : hostile) {
    CAPTURE(source.substr(0, 100));
    jinja::Cost cost;
    const auto text = rendered(source, "{}", &cost);
    REQUIRE_FALSE(text.has_value());
    CHECK((text.error().kind == ErrorKind::budget || text.error().kind == ErrorKind::unsupported));
    MESSAGE(source.substr(0, 80), ": ", text.error().message, ", ", cost.steps, " steps, ", cost.bytes, " bytes");
  }
}

TEST_CASE("jinja: DeepSeek-V3's template gives the texts of transformers") {
  const auto source = test_json("tiny-v3/tokenizer_config.json").at("chat_template").get<std::string>();
  const auto chat = ChatTemplate::compile(source);
  REQUIRE(chat.has_value());
  const auto file = OrderedJson::parse(test_file("text/chat_cases.json"));
  size_t texts = 0;
  for (const OrderedJson& each : file.at("cases")) {
    const auto conversation = parse_conversation(file.at("conversations").at(each.at("messages").get<size_t>()).dump());
    REQUIRE(conversation.has_value());
    RenderOptions options{
        .bos_token = "<B>", .eos_token = "<E>", .add_generation_prompt = each.at("add_generation_prompt")};
    if (each.at("tools").get<bool>()) options.tools = file.at("tools");
    for (const OrderedJson& result : each.at("results")) {
      const auto& names = result.at("templates");
      if (std::find(names.begin(), names.end(), "deepseek-v3") == names.end()) continue;
      const auto text = chat->render(conversation->messages, options);
      CAPTURE(each.dump());
      CHECK(text.has_value() == result.at("text").is_string());
      if (text && result.at("text").is_string()) CHECK(*text == result.at("text").get<std::string>());
      ++texts;
    }
  }
  CHECK(texts > 40);
}

}  // namespace dspack::jinja_test
