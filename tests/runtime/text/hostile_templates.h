// Templates as a stranger writes them to fell the engine, of each kind twenty and more. `n` is a size that the test
// chooses, so that the largest text is a good part of what a template may hold.
#pragma once

#include <array>
#include <string_view>

namespace dspack::hostile_templates {

/// How it ends.
enum class End {
  text,
  refusal,  // what Jinja would refuse, or what is not supported
  budget,   // of steps, bytes or nesting
};

struct Hostile {
  std::string_view source;
  End end;
};

using enum End;

inline constexpr std::array kState = std::to_array<Hostile>({
    {"{{ namespace(revindex0=1).cycle('a', 'b') }}", refusal},
    {"{{ namespace(revindex0=1, index0='x').changed(1) }}", refusal},
    {"{{ dict(revindex0=1, index0='x').cycle(1) }}", refusal},
    {"{% set ns = namespace() %}{% set ns.index0 = 'x' %}{% set ns.revindex0 = 1 %}{{ ns.cycle(1, 2) }}", refusal},
    {"{% for i in [1] %}{% set loop.index0 = 'x' %}{{ loop.cycle('a') }}{% endfor %}", refusal},
    {"{% for i in [1, 2] %}{% set loop.revindex0 = none %}{% endfor %}", refusal},
    {"{% for i in [1] %}{{ loop.cycle() }}{% endfor %}", refusal},
    {"{% for i in [1] %}{{ loop.changed(loop) }}{% endfor %}", refusal},
    {"{% for i in [1] %}{{ loop.changed([[loop]]) }}{% endfor %}", refusal},
    {"{% for i in [1] %}{{ loop.changed(loop.cycle) }}{% endfor %}", refusal},
    {"{% for i in [1] %}{% set ns = namespace(l=loop) %}{% endfor %}", refusal},
    {"{% for i in [1] %}{{ {'l': loop} }}{% endfor %}", refusal},
    {"{% for i in [1] %}{{ {'l': [namespace()]} }}{% endfor %}", refusal},
    {"{% for i in [1] %}{{ loop }}{% endfor %}", refusal},
    {"{% for i in [1] %}{{ [loop] | tojson }}{% endfor %}", refusal},
    {"{% for i in [1] %}{{ loop + 1 }}{% endfor %}", refusal},
    {"{% for i in [1] %}{{ loop | sort }}{% endfor %}", refusal},
    {"{% for i in [1, 2] %}{{ [loop, loop] | sort | length }}{{ [loop, 1] | sort }}{% endfor %}", refusal},
    {"{{ -namespace() }}", refusal},
    {"{{ namespace() ** none }}{{ namespace()() }}", refusal},
    {"{% set loop = namespace(index0=[]) %}{{ loop.cycle(1) }}", refusal},
    {"{% for loop in [namespace(index0='x', revindex0=1)] %}{{ loop.cycle(1, 2) }}{% endfor %}", refusal},
    {"{% for i in 'ab' %}{% set c = loop.cycle %}{% set loop = 3 %}{{ c('a', 'b') }}{% endfor %}", text},
    {"{% macro m() %}{{ loop.index0 }}{% endmacro %}{% for i in [1] %}{{ m() }}{% endfor %}", refusal},
    {"{% for i in 'abc' %}{% for j in [loop] %}{{ j.cycle(1, 2) }}{{ j.nextitem }}{{ j.x }}{% endfor %}{% endfor %}",
     text},
    {"{% set ns = namespace() %}{% set ns.a = ns %}", refusal},
    {"{% set ns = namespace() %}{% set ns.f = ns.g.h %}", refusal},
    {"{% set ns = namespace() %}{% set ns.f = [ns] | first %}", refusal},
    // A namespace, a macro in it, and the scope in which both are: each holds the next.
    {"{% set ns = namespace() %}{% macro m() %}{{ ns.x }}{% endmacro %}{% set ns.f = m %}{{ ns.f() }}", text},
    {"{% with ns = namespace() %}{% with %}{% macro m() %}{% endmacro %}{% set ns.f = m %}{% endwith %}{% endwith %}",
     text},
    {"{% set ns = namespace(f=none) %}{% for i in range(n // 1000) %}{% macro m() %}{% endmacro %}{% set ns.f = m %}"
     "{% endfor %}",
     text},
});

// Linear in the text, or charged for what is compared.
inline constexpr std::array kSearches = std::to_array<Hostile>({
    {"{{ ('a' * n).find('a' * (n // 2) ~ 'b') }}", text},
    {"{{ ('a' * n).rfind('b' ~ 'a' * (n // 2)) }}", text},
    {"{{ ('a' * n).index('a' * (n // 2) ~ 'b') }}", refusal},
    {"{{ ('a' * n).count('a' * (n // 2) ~ 'b') }}", text},
    {"{{ ('ab' * (n // 2)).count('ab' * (n // 8) ~ 'a') }}", text},
    {"{{ 'a' * (n // 2) ~ 'b' in 'a' * n }}", text},
    {"{{ 'a' * (n // 2) ~ 'ba' not in 'a' * n }}", text},
    {"{{ ('a' * n).replace('a' * (n // 2) ~ 'b', '') | length }}", text},
    {"{{ ('a' * n) | replace('a' * (n // 2) ~ 'b', '') | length }}", text},
    {"{{ ('a' * n).split('a' * (n // 2) ~ 'b') | length }}", text},
    {"{{ ('a' * n).rsplit('b' ~ 'a' * (n // 2)) | length }}", text},
    {"{{ ('a' * n).partition('a' * (n // 2) ~ 'b') | length }}", text},
    {"{{ ('a' * n).strip('b' * (n // 2) ~ 'a') | length }}", budget},
    {"{% set a = 'a' * n %}{% for i in range(99999) %}{{ a.startswith(a) }}{% endfor %}", budget},
    {"{% set a = 'a' * n %}{{ a.endswith((a ~ 'b',) * 99999) }}{{ a.endswith(('b' ~ a[1:],) * 99999) }}", budget},
    {"{% set a = 'a' * n %}{% for i in range(99999) %}{{ a.removeprefix(a) }}{{ a.removesuffix('b' ~ a) | length }}{% "
     "endfor %}",
     budget},
    {"{% set a = 'a' * n %}{% for i in range(99999) %}{{ a ~ 'b' in a ~ 'b' }}{% endfor %}", budget},
    {"{% set a = 'a' * n %}{% for i in range(99999) %}{{ a in {a: 1} }}{% endfor %}", budget},
    {"{% set a = 'a' * n %}{% set d = {a: 1} %}{% for i in range(99999) %}{{ a in d }}{% endfor %}", budget},
    {"{% set a = 'a' * n %}{% set d = {a: 1} %}{% for i in range(99999) %}{{ d[a] }}{{ d.get(a) }}{% endfor %}",
     budget},
    {"{% set a = 'a' * n %}{% set d = {(a, 1): 1} %}{% for i in range(99999) %}{{ d[(a, 1)] }}{% endfor %}", budget},
    {"{% set a = 'a' * n %}{% for i in range(99999) %}{{ dict({a: i}) == {a: 0} }}{% endfor %}", budget},
    {"{% set a = 'a' * n %}{% for i in range(99999) %}{{ a ~ 'b' == a ~ 'c' }}{% endfor %}", budget},
    {"{% set a = 'a' * n %}{% for i in range(99999) %}{{ a < a }}{% endfor %}", budget},
    {"{{ (['a' * n] * 99999) | unique(true) | list | length }}", budget},
    {"{{ (['a' * n] * 99999) | sort(case_sensitive=true) | length }}", budget},
    {"{{ (['a' * n] * 99999) | max | length }}", budget},
    {"{{ (['a' * n] * 99999).index('b' ~ 'a' * (n - 1)) }}", budget},
    {"{{ (['a' * n] * 99999).count('a' * n) }}", budget},
    {"{{ ([' ' * n] * 99999) | map('int') | list | length }}", budget},
    {"{{ (['a b' * (n // 3)] * 99999) | map('wordcount') | sum }}", budget},
    {"{{ (['a' * n] * 99999) | map('trim', 'b') | list | length }}", budget},
    {"{{ ([{}] * 99999) | map(attribute='a' * n) | list | length }}", budget},
    {"{{ ([{}] * 99999) | selectattr('a.' * n) | list | length }}", refusal},
    {"{{ ([[[1]]] * 99999) | map(attribute='0' * (n // 2)) | list | length }}", budget},
    {"{{ (['%(' ~ 'a' * n ~ ')s'] * 999) | map('format', **{'a' * n: 1}) | list | length }}", budget},
    {"{% set ns = namespace(**{'a' * n: 1}) %}{% for i in range(99999) %}{{ ns['a' * n] }}{% endfor %}", budget},
    {"{{ ([1] * 99999) | map('default', **dict((range(999) | map('string') | list)[0:0], a=1)) | list | length }}",
     refusal},
});

// The budget is asked before anything grows.
inline constexpr std::array kMemory = std::to_array<Hostile>({
    {"{{ ('a ' * n).split() | length }}", budget},
    {"{{ ('a ' * n).rsplit() | length }}", budget},
    {"{{ ('a,' * n).split(',') | length }}", budget},
    {"{{ ('a,' * n).rsplit(',') | length }}", budget},
    {"{{ ('a\\n' * n).splitlines() | length }}", budget},
    {"{{ ('a' * n) | list | length }}", budget},
    {"{{ 'a' * 10 ** 12 }}", budget},
    {"{{ [1] * 10 ** 12 }}", budget},
    {"{{ (1, 2) * (n * 2) }}", budget},
    {"{{ [[]] * n + [1] * n + [2] * n }}", budget},
    {"{{ ('a' * n).join(['b'] * 9999) | length }}", budget},
    {"{{ (['b'] * 9999) | join('a' * n) | length }}", budget},
    {"{{ ('a' * n).replace('a', 'b' * n) | length }}", budget},
    {"{{ ('a' * n).replace('', 'b' * n) | length }}", budget},
    {"{{ ('{0}' * 9999).format('a' * n) | length }}", budget},
    {"{{ ('%s' * 9) % (('a' * n,) * 9) }}{{ ('%s' * 99) % (('a' * n,) * 99) }}", budget},
    {"{{ ('%(a)s' * 9999) % {'a': 'a' * n} }}", budget},
    {"{{ ('%99999d' * 9999) % ((1,) * 9999) }}", budget},
    {"{{ '%a' % ('\\u00e9' * (n * 8)) }}", budget},
    {"{{ ('\\n' * n) | indent('a' * n, true, true) | length }}", budget},
    {"{{ ([1] * 9999) | tojson(indent='a' * n) | length }}", budget},
    {"{{ ([1] * 9999) | tojson(separators=('a' * n, ':')) | length }}", budget},
    {"{{ ('\\x01' * (n * 8)) | tojson | length }}", budget},
    {"{{ ('\\x01' * (n * 8)) | string | list | string | length }}", budget},
    {"{{ ['\\x01' * (n * 8)] | string | length }}", budget},
    {"{{ ('\\u0390' * (n * 4)) | upper | length }}", budget},
    {"{{ ('\\u0390' * (n * 4)) | title | length }}", budget},
    {"{{ ('<' * (n * 4)) | escape | length }}", budget},
    {"{{ ('a' * n).zfill(10 ** 15) }}", budget},
    {"{{ ('a' * n ~ 'a' * n ~ 'a' * n) * 9 }}", budget},
    {"{% set ns = namespace(s='ab') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}", budget},
    {"{% set ns = namespace(s=['a']) %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}", budget},
    {"{% set ns = namespace(s=['a']) %}{% for i in range(99999) %}{% set ns.s = ns.s + [i] %}{% endfor %}", budget},
    {"{{ (range(99999) | list * 9) | map(attribute='x') | list * 9 }}", budget},
    {"{% set l = [1] * n %}{{ [l[::1], l[::-1], l | reverse | list, l | select | list, l | map('abs') | list] }}",
     budget},
    {"{% set l = [{}] * n %}{{ l | map(attribute='a') | list | length }}", budget},
    {"{% set l = [{}] * n %}{{ l | map('items') | list | length }}", budget},
    {"{{ dict(a=1, **{'b': 2}).items() | list }}{{ (range(99999) | map('string') | list * 9) | map('list') | list }}",
     budget},
    {"{% macro m() %}{{ varargs | length }}{% endmacro %}{{ m(*([1] * n)) }}{{ m(*([1] * n * 2)) }}", budget},
    {"{% macro m(a, b, c) %}{% macro q() %}{% endmacro %}{% endmacro %}{% for j in range(99) %}{% for i in "
     "range(99999) %}{{ m() }}{% endfor %}{% endfor %}",
     budget},
    {"{% for i in range(99) %}{% for i in range(99999) %}{% macro m() %}{% endmacro %}{% endfor %}{% endfor %}",
     budget},
    {"{% for i in range(9999) %}{% set x %}{{ 'a' * n }}{% endset %}{{ x }}{% endfor %}", budget},
    {"{% for i in range(9999) %}{% filter upper %}{{ 'a' * n }}{% endfilter %}{% endfor %}", budget},
    {"{% for i in range(99999) %}{{ 'a' * n }}{% endfor %}", budget},
    {"{{ {}['a' * n] }}{{ raise_exception('a' * n) }}", refusal},
    {"{{ ('a' * n) | attr('a' * n) }}{{ {} | attr('b' * n) }}{{ ('a' * n).foo }}", text},
});

inline constexpr std::array kRecursion = std::to_array<Hostile>({
    {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", budget},
    {"{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}", budget},
    {"{% macro m(x) %}{{ x(x) }}{% endmacro %}{{ m(m) }}", budget},
    {"{% macro m(x=m()) %}{{ x }}{% endmacro %}{{ m() }}", budget},
    {"{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{{ caller }}{% endmacro %}{{ m() }}", budget},
    {"{% macro m() %}{{ caller() }}{% endmacro %}{% macro q() %}{% call m() %}{{ q() }}{% endcall %}{% endmacro %}{{ "
     "q() }}",
     budget},
    {"{% macro m(i) %}{% for x in [i] %}{{ m(loop) }}{% endfor %}{% endmacro %}{{ m(1) }}", budget},
    {"{% macro m() %}{% with a = m() %}{{ a }}{% endwith %}{% endmacro %}{{ m() }}", budget},
    {"{% macro m() %}{% set a %}{{ m() }}{% endset %}{% endmacro %}{{ m() }}", budget},
    {"{% macro m() %}{% filter upper %}{{ m() }}{% endfilter %}{% endmacro %}{{ m() }}", budget},
    {"{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}", budget},
    {"{% macro m(d) %}{% if d %}{{ m(d - 1) }}{{ m(d - 1) }}{% endif %}{% endmacro %}{{ m(60) }}", budget},
    {"{% macro m(x) %}{{ 1 + (1 + (1 + (m(x) | length))) }}{% endmacro %}{{ m(1) }}", budget},
    {"{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% endfor %}", budget},
    {"{% set ns = namespace(l=()) %}{% for i in range(9999) %}{% set ns.l = (ns.l, 1) %}{% endfor %}", budget},
    {"{% set ns = namespace(l={}) %}{% for i in range(9999) %}{% set ns.l = {'a': ns.l} %}{% endfor %}", budget},
    {"{% set ns = namespace(l={}) %}{% for i in range(9999) %}{% set ns.l = [{1: (ns.l,)}] | list %}{% endfor %}",
     budget},
    {"{% set ns = namespace(l='a') %}{% for i in range(9999) %}{% set ns.l = [ns.l.upper] %}{% endfor %}{{ ns.l }}",
     text},
    // In two trees of 2^99 leaves.
    {"{% set a = namespace(x=[1], y=[1]) %}{% for i in range(99) %}{% set a.x = [a.x, a.x] %}{% set a.y = [a.y, a.y] %}"
     "{% endfor %}{{ a.x == a.y }}",
     budget},
    {"{% set a = namespace(x=[1], y=[2]) %}{% for i in range(99) %}{% set a.x = [a.x, a.x] %}{% set a.y = [a.y, a.y] %}"
     "{% endfor %}{{ a.x < a.y }}",
     text},
    {"{% set a = namespace(x=[1]) %}{% for i in range(99) %}{% set a.x = [a.x, a.x] %}{% endfor %}{{ a.x }}", budget},
    {"{% set a = namespace(x=[1]) %}{% for i in range(99) %}{% set a.x = [a.x, a.x] %}{% endfor %}{{ a.x | tojson }}",
     budget},
    {"{% set a = namespace(x={}) %}{% for i in range(99) %}{% set a.x = {1: a.x, 2: a.x} %}{% endfor %}{{ a.x | string "
     "}}",
     budget},
    {"{% set a = namespace(x={}) %}{% for i in range(99) %}{% set a.x = {1: a.x, 2: a.x} %}{% endfor %}"
     "{{ a.x == dict(a.x, b=1) or dict(a.x) == dict(a.x) }}",
     text},
});

inline constexpr std::array kRanges = std::to_array<Hostile>({
    {"{% for i in range(10 ** 9) %}x{% endfor %}", budget},
    {"{% for i in range(-(10 ** 18), 10 ** 18) %}x{% endfor %}", budget},
    {"{% for i in range(10 ** 18, -(10 ** 18), -1) %}x{% endfor %}", budget},
    {"{{ range(-9223372036854775807, 9223372036854775807, 9223372036854775807) | list | length }}", text},
    {"{{ range(9223372036854775807, -9223372036854775807, -9223372036854775807) | list | length }}", text},
    {"{{ range(0, 9223372036854775807, 1) | first }}", budget},
    {"{{ range(1, 2, 0) }}", refusal},
    {"{{ range(1.5) }}", refusal},
    {"{{ range() }}", refusal},
    {"{{ range('a' * n) }}", refusal},
    {"{{ range(*([1] * 99)) }}", refusal},
    {"{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", budget},
    {"{% for i in range(99999) %}{% for j in range(99999) if j < 0 %}{% endfor %}{% endfor %}", budget},
    {"{% for i in range(99999) %}{{ range(99999) | list | length }}{% endfor %}", budget},
    {"{{ 'abc'[9223372036854775807:-9223372036854775807:-9223372036854775807] }}", text},
    {"{{ 'a\xC3\xA4\xE5\xA5\xBD'[-9223372036854775807:9223372036854775807:9223372036854775807] }}", text},
    {"{{ [1, 2][-9223372036854775807:9223372036854775807:9223372036854775807] }}", text},
    {"{{ [1, 2][9223372036854775807] }}{{ 'ab'[-9223372036854775807] }}", text},
    {"{{ 9223372036854775807 + 1 }}", refusal},
    {"{{ -9223372036854775807 - 2 }}", refusal},
    {"{{ (-9223372036854775807 - 1) // -1 }}", refusal},
    {"{{ (-9223372036854775807 - 1) % -1 }}{{ (-9223372036854775807 - 1) | abs }}", refusal},
    {"{{ 10 ** 30 }}", refusal},
    {"{{ 1 ** 9223372036854775807 }}{{ (-1) ** 9223372036854775807 }}{{ 2 ** -9223372036854775807 }}", text},
    {"{{ ('9' * n) | int }}", text},
    {"{{ ('9' * 400) | float }}{{ ('1e999') | int }}", text},
    {"{{ 'a' | truncate(-9223372036854775807) }}", refusal},
    {"{{ 'a b' | truncate(9223372036854775807, leeway=9223372036854775807) }}", text},
    {"{{ 'a' | indent(9223372036854775807) | length }}{{ 'a' | indent(-9223372036854775807) }}", text},
    {"{{ 'a'.zfill(9223372036854775807) }}", budget},
    {"{{ 'a'.zfill(-9223372036854775807) }}{{ 'a' * -9223372036854775807 }}", text},
    {"{{ 'a' * 9223372036854775807 }}", budget},
    {"{{ [1] * 9223372036854775807 }}", budget},
    {"{{ '' * 9223372036854775807 }}{{ [] * 9223372036854775807 }}", text},
    {"{{ '%*d' % (9223372036854775807, 1) }}", budget},
    {"{{ ('%.*f' % (99999, 1.5)) | length }}{{ '%.99999e' % 1e300 }}", text},
    {"{{ 1.5 | round(9223372036854775807) }}", refusal},
    {"{{ 'aaa'.replace('a', 'b', 9223372036854775807) }}{{ 'aaa'.replace('a', 'b', -9223372036854775807) }}", text},
    {"{{ 'a b'.split(' ', 9223372036854775807) }}{{ 'a b'.split(none, -9223372036854775807) }}", text},
    {"{{ [1] | tojson(indent=9223372036854775807) }}", refusal},
});

}  // namespace dspack::hostile_templates
