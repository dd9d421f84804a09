"""Random templates over everything that jinja2 offers to a chat template: filters, tests, methods, operators, statements,
white space. What they ask for is mostly, not always, of the right type: mistakes must be mistakes on both sides."""

import random

ATOMS = {
    "str": ["s", "ws", "u", "html", "lines", "''", "'a'", "'b c'", "'%s'", "'{}'", "d.k", "'12'", "' 3.5 '", "'ΑΣ'", "'x-Y z'", "(html|safe)", "'0x1F'", "'a\\tb'"],
    "int": ["i", "neg", "0", "1", "2", "-1", "10", "t", "s|length"],
    "float": ["x", "0.5", "-1.25", "1e22", "1e-7", "100.0"],
    "bool": ["t", "f", "s is string", "i > 2", "not t"],
    "list": ["l", "ls", "mixed", "[]", "[1, 2, 3]", "['a', 'B']", "people", "(1, 2)", "(1,)", "range(4)", "d.keys()", "d.values()", "[[1, 'a'], [0, 'b']]", "[none, nope]", "[1, 1.0, true]"],
    "dict": ["d", "people[0]", "{}", "{'a': 1, 'B': [2]}", "json", "{1: 'x', 'y': none}", "dict(a=1, b='z')"],
    "none": ["none", "nope", "d.nope"],
}  # fmt: skip

# Filters by what they take: (name and arguments, what they give). I, S, L, A: a small integer, text, list, anything.
FILTERS = {
    "str": [
        ("upper", "str"), ("lower", "str"), ("title", "str"), ("capitalize", "str"), ("trim", "str"), ("trim(S)", "str"),
        ("replace(S, S)", "str"), ("replace(S, S, I)", "str"), ("reverse", "str"), ("length", "int"), ("count", "int"),
        ("wordcount", "int"), ("list", "list"), ("first", "str"), ("last", "str"), ("string", "str"), ("e", "str"),
        ("escape", "str"), ("forceescape", "str"), ("safe", "str"), ("striptags", "str"), ("indent", "str"),
        ("indent(I)", "str"), ("indent(I, B)", "str"), ("indent(S, B, B)", "str"), ("center(I)", "str"),
        ("center(width=20)", "str"), ("truncate(I)", "str"), ("truncate(I, B)", "str"), ("truncate(I, B, S)", "str"),
        ("truncate(I, B, S, I)", "str"), ("wordwrap(I)", "str"), ("wordwrap(I, B)", "str"),
        ("wordwrap(I, B, S)", "str"), ("wordwrap(I, B, S, B)", "str"), ("int", "int"), ("int(I)", "int"),
        ("int(I, 16)", "int"), ("int(base=0)", "int"), ("float", "float"), ("float(x)", "float"), ("format(A)", "str"),
        ("format(A, A)", "str"), ("urlencode", "str"), ("tojson", "str"), ("tojson(true)", "str"), ("join", "str"),
        ("join(S)", "str"), ("sort|join", "str"), ("unique|join", "str"), ("batch(I)|list", "list"),
        ("slice(I)|list", "list"), ("map('upper')|join", "str"), ("select('in', S)|join", "str"), ("max", "str"),
        ("min", "str"), ("default(A)", "any"), ("d(A, true)", "any"), ("attr('upper')()", "str"), ("pprint", "str"),
        ("urlize", "str"), ("urlize(I)", "str"), ("groupby('0')|list", "list"),
    ],
    "num": [
        ("abs", "num"), ("round", "float"), ("round(I)", "float"), ("round(I, 'floor')", "float"),
        ("round(1, 'ceil')", "float"), ("int", "int"), ("float", "float"), ("string", "str"), ("filesizeformat", "str"),
        ("filesizeformat(B)", "str"), ("tojson", "str"), ("upper", "str"), ("default(A)", "any"), ("pprint", "str"),
        ("center(I)", "str"), ("e", "str"), ("length", "int"), ("list", "list"), ("trim", "str"), ("urlencode", "str"),
        ("wordcount", "int"), ("replace(I, I)", "str"), ("title", "str"), ("sum", "int"),
    ],
    "list": [
        ("length", "int"), ("list", "list"), ("first", "any"), ("last", "any"), ("join", "str"), ("join(S)", "str"),
        ("join(S, 'name')", "str"), ("join(attribute=S)", "str"), ("sort", "list"), ("sort(B)", "list"),
        ("sort(B, B)", "list"), ("sort(attribute='name')", "list"), ("sort(attribute='age,name')", "list"),
        ("sort(attribute=0)", "list"), ("unique|list", "list"), ("unique(B)|list", "list"),
        ("unique(attribute='age')|list", "list"), ("reverse|list", "list"), ("max", "any"), ("min", "any"),
        ("max(B)", "any"), ("min(attribute='age')", "any"), ("sum", "num"), ("sum(start=I)", "num"),
        ("sum('age')", "num"), ("sum(attribute='age', start=I)", "num"), ("map('upper')|list", "list"),
        ("map('string')|list", "list"), ("map('default', A)|list", "list"), ("map('replace', S, S)|list", "list"),
        ("map(attribute='name')|list", "list"), ("map(attribute='nope', default=A)|list", "list"),
        ("map(attribute='tags.0')|list", "list"), ("map('int', I)|list", "list"), ("map('first')|list", "list"),
        ("select|list", "list"), ("reject|list", "list"), ("select('T')|list", "list"), ("reject('T')|list", "list"),
        ("select('eq', A)|list", "list"), ("select('in', L)|list", "list"), ("reject('gt', I)|list", "list"),
        ("selectattr('name')|list", "list"), ("selectattr('age', 'gt', I)|list", "list"),
        ("rejectattr('tags')|list", "list"), ("rejectattr('name', 'T')|list", "list"),
        ("selectattr('name', 'equalto', 'bob')|list", "list"), ("selectattr(0, 'odd')|list", "list"),
        ("groupby('age')|list", "list"), ("groupby('name', default=A)|list", "list"),
        ("groupby('name', case_sensitive=B)|map(attribute='grouper')|list", "list"),
        ("groupby(attribute='tags')|map('last')|list", "list"), ("batch(I)|list", "list"),
        ("batch(I, A)|list", "list"), ("slice(I)|list", "list"), ("slice(I, A)|list", "list"), ("tojson", "str"),
        ("tojson(indent=I)", "str"), ("tojson(indent=S)", "str"), ("tojson(separators=(S, S))", "str"),
        ("string", "str"), ("default(A, B)", "any"), ("items|list", "list"), ("upper", "str"), ("pprint", "str"),
        ("e", "str"), ("urlencode", "str"), ("xmlattr", "str"), ("first|string", "str"), ("wordcount", "int"),
    ],
    "dict": [
        ("length", "int"), ("list", "list"), ("items|list", "list"), ("dictsort", "list"), ("dictsort(B)", "list"),
        ("dictsort(by='value')", "list"), ("dictsort(false, 'key', B)", "list"), ("first", "any"), ("last", "any"),
        ("join(S)", "str"), ("sort", "list"), ("tojson", "str"), ("tojson(indent=I)", "str"),
        ("tojson(sort_keys=B)", "str"), ("tojson(B, I, (S, S), B)", "str"), ("string", "str"), ("xmlattr", "str"),
        ("xmlattr(B)", "str"), ("urlencode", "str"), ("pprint", "str"), ("map('upper')|list", "list"),
        ("select('in', S)|list", "list"), ("attr('a')", "any"), ("max", "any"), ("unique|list", "list"),
        ("reverse|list", "list"), ("batch(I)|list", "list"), ("default(A)", "any"), ("e", "str"),
    ],
}  # fmt: skip
FILTERS |= {"int": FILTERS["num"], "float": FILTERS["num"], "bool": FILTERS["num"], "none": FILTERS["str"] + FILTERS["list"]}

METHODS = {
    "str": [
        ("upper()", "str"), ("lower()", "str"), ("title()", "str"), ("capitalize()", "str"), ("swapcase()", "str"),
        ("casefold()", "str"), ("strip()", "str"), ("strip(S)", "str"), ("lstrip(S)", "str"), ("rstrip()", "str"),
        ("split()", "list"), ("split(S)", "list"), ("split(S, I)", "list"), ("split(none, I)", "list"),
        ("rsplit(S, I)", "list"), ("rsplit(maxsplit=I)", "list"), ("splitlines()", "list"), ("splitlines(B)", "list"),
        ("replace(S, S)", "str"), ("replace(S, S, I)", "str"), ("find(S)", "int"), ("find(S, I)", "int"),
        ("find(S, I, I)", "int"), ("rfind(S)", "int"), ("rfind(S, I)", "int"), ("index(S)", "int"),
        ("rindex(S, I)", "int"), ("count(S)", "int"), ("count(S, I)", "int"), ("count(S, I, I)", "int"),
        ("startswith(S)", "bool"), ("startswith((S, S))", "bool"), ("startswith(S, I)", "bool"),
        ("endswith(S)", "bool"), ("endswith(S, I, I)", "bool"), ("partition(S)", "list"), ("rpartition(S)", "list"),
        ("removeprefix(S)", "str"), ("removesuffix(S)", "str"), ("isdigit()", "bool"), ("isdecimal()", "bool"),
        ("isnumeric()", "bool"), ("isalpha()", "bool"), ("isalnum()", "bool"), ("isspace()", "bool"),
        ("isupper()", "bool"), ("islower()", "bool"), ("istitle()", "bool"), ("isascii()", "bool"),
        ("isidentifier()", "bool"), ("isprintable()", "bool"), ("center(I)", "str"), ("center(I, 'é')", "str"),
        ("ljust(I)", "str"), ("ljust(I, '*')", "str"), ("rjust(I, '.')", "str"), ("zfill(I)", "str"),
        ("expandtabs()", "str"), ("expandtabs(I)", "str"), ("join(L)", "str"), ("join(ls)", "str"), ("format(A)", "str"),
        ("format(A, A)", "str"), ("format(a=A)", "str"), ("format_map(d)", "str"),
    ],
    "list": [("index(A)", "int"), ("count(A)", "int"), ("copy()", "list"), ("index(A, I)", "int"), ("append(1)", "none")],
    "dict": [
        ("get('a')", "any"), ("get(S, A)", "any"), ("get(A)", "any"), ("items()", "list"), ("keys()|list", "list"),
        ("values()|list", "list"), ("copy()", "dict"), ("keys()", "list"), ("pop('a')", "none"),
    ],
    "float": [("is_integer()", "bool")],
    "int": [("bit_length()", "int"), ("bit_count()", "int")],
}  # fmt: skip

TESTS = """defined undefined none string mapping iterable sequence boolean true false integer float number callable escaped lower
upper odd even filter test divisibleby(I) in(L) sameas(A) eq(A) ne(A) lt(A) le(A) gt(A) ge(A) equalto(A) lessthan(A)
greaterthan(A)""".split()
BARE_TESTS = [test for test in TESTS if "(" not in test]

FORMATS = """'%s' '%d' '%5.2f' '%-8s|' '%+d' '% d' '%05d' '%x' '%#x' '%o' '%e' '%g' '%r' '%a' '%c' '%.3s' '%%' '%i' '%G' '%8.3e' '%.0f' '%#o'
'%X' '%u'""".split()
SPECS = """{} {!r} {!s} {!a} {:5} {:<5} {:>5} {:^7} {:*^9} {:é>4} {:d} {:05d} {:+} {:+d} {:,} {:_} {:x} {:#x} {:o} {:#b} {:b} {:c} {:e} {:.2f} {:10.3f} {:.3}
{:.2%} {:g} {:n} {:G} {:s} {:.1s} {:08.2f} {:=+6d} {:,.2f} {:{w}} {0} {0!r:>8} {0[0]} {0.a} {:X} {:%} {: } {:-} {:<05} {:#.3g} {:_x} {:E} {:#X}""".split()  # fmt: skip


class Grammar:
    def __init__(self, seed, mistakes=0.05):
        self.random = random.Random(seed)
        self.mistakes = mistakes

    def pick(self, items):
        return self.random.choice(items)

    def atom(self, kind):
        kind = {"num": "int", "any": self.pick(list(ATOMS))}.get(kind, kind)
        if self.random.random() < self.mistakes:  # of a type that is not wanted
            kind = self.pick(list(ATOMS))
        return self.pick(ATOMS[kind])

    def fill(self, pattern, depth):
        """Replaces the capitals that stand for arguments."""
        out, before = "", ""
        for at, c in enumerate(pattern):
            after = pattern[at + 1] if at + 1 < len(pattern) else ""
            alone = before in "(, =[" and after in "), ]" and c != ""
            if alone and c == "I":
                out += self.pick(["0", "1", "2", "3", "5", "8", "20", "-1", "-3", "i", "t"])
            elif alone and c == "B":
                out += self.pick(["true", "false", "t", "0", "1"])
            elif alone and c == "S":
                out += self.pick(["' '", "'a'", "','", "', '", "''", "'l'", "'o'", "'<'", "'é'", "'\\n'", "'ab'", "s", "'-'", "'k'"])
            elif alone and c == "L":
                out += self.atom("list")
            elif alone and c == "A":
                out += self.expression("any", depth - 1) if depth > 1 else self.atom("any")
            elif c == "T" and before == "'" and after == "'":
                out += self.pick(BARE_TESTS)
            else:
                out += c
            before = c
        return out

    def applied(self, kind, table, depth, mark):
        """An expression of `kind` made by a filter or method."""
        wanted = ("int", "float", "num") if kind == "num" else (kind,)
        choices = [(of, name) for of, entries in table.items() for name, gives in entries if kind == "any" or gives in wanted]
        if not choices:
            return self.atom(kind)
        of, name = self.pick(choices)
        return self.bracketed(self.expression(of, depth - 1), mark) + mark + self.fill(name, depth)

    def bracketed(self, text, mark):
        plain = text.isidentifier() or (mark == "|" and not set(text) & set(" -"))
        return text if plain and self.random.random() < 0.8 else f"({text})"

    def expression(self, kind="any", depth=3):
        roll = self.random.random()
        if depth <= 0 or roll < 0.15:
            return self.atom(kind)
        if roll < 0.5:
            return self.applied(kind, FILTERS, depth, "|")
        if roll < 0.7:
            return self.applied(kind, METHODS, depth, ".")
        if roll < 0.75:
            if kind in ("bool", "any"):
                subject = self.bracketed(self.expression("any", depth - 1), "|")
                return f"{subject} is {self.pick(['', 'not '])}{self.fill(self.pick(TESTS), depth)}"
            condition = self.expression("bool", depth - 1)
            return f"({self.expression(kind, depth - 1)} if {condition} else {self.expression(kind, depth - 1)})"
        if roll < 0.8:
            subject = self.bracketed(self.expression(self.pick(["str", "list"]), depth - 1), ".")
            slices = ["[0]", "[-1]", "[1:]", "[:-1]", "[::-1]", "[1:3]", "[::2]", "[-3:]", "['a']", "[i]", "[5:1:-1]", "[t:]", "[:none]", ".a", ".0"]
            return subject + self.pick(slices)
        if roll < 0.86:
            return self.formatted(depth)
        a, b = self.expression(kind, depth - 1), self.expression(kind, depth - 1)
        operators = {"str": ["+", "~", "*", "%", "or", "and"], "list": ["+", "or", "and"], "bool": ["and", "or", "==", "!="]}
        numeric = ["+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "~", "and", "or"]
        return f"({a} {self.pick(operators.get(kind, numeric))} {b})"

    def formatted(self, depth):
        value = self.expression(self.pick(["any", "int", "float", "str"]), depth - 1)
        if self.random.random() < 0.5:
            return f"{self.pick(FORMATS)} % {self.bracketed(value, '.')}"
        return f"'{self.pick(SPECS)}'.format({value}, w=7)"

    # ---- statements ----

    def text(self):
        return self.pick(["", " ", "\n", "  \n", "a", "a\n  b ", "<|x|>", "\n\n", "\t", "é ", " - ", "\n    "])

    def tag(self, inner):
        return f"{{%{self.pick(['', '', '', '-', '+'])} {inner} {self.pick(['', '', '', '-', '+'])}%}}"

    def output(self):
        left, right = self.pick(["{{ ", "{{ ", "{{- "]), self.pick([" }}", " }}", " -}}"])
        if self.random.random() < 0.5:  # what a name is where
            return left + self.pick(["y", "z", "s", "i", "i", "s", "y is defined", "loop is defined", "q", "ns.a"]) + right
        return left + self.expression("any", self.pick([1, 1, 2])) + right

    def body(self, depth):
        return "".join(self.text() + self.statement(depth - 1) for _ in range(self.random.randint(1, 2))) + self.text()

    def statement(self, depth):
        if depth <= 0:
            return self.output()
        name = self.pick(["y", "z", "s", "i"])
        makers = [
            lambda: self.output(),
            lambda: self.tag(f"if {self.expression('bool', 2)}") + self.body(depth) + self.pick(["", self.tag(f"elif {self.expression('any', 1)}") + self.body(depth)]) + self.pick(["", self.tag("else") + self.body(depth)]) + self.tag("endif"),
            lambda: self.tag(f"for {name} in {self.expression('list', 2)}{self.pick(['', f' if {name}', ' if loop is defined'])}") + self.body(depth) + "{{ " + self.pick(["loop.index", "loop.last", "loop.previtem", "loop.nextitem", "loop.length", "loop.changed(y)", "loop.cycle(1, 'b')", "loop.revindex0", name]) + " }}" + self.pick(["", "", self.tag(self.pick(["break", "continue"]))]) + self.text() + self.pick(["", self.tag("else") + self.body(depth)]) + self.tag("endfor"),
            lambda: self.tag(f"for k, v in {self.expression('dict', 1)}.items()") + "{{ k }}={{ v }};" + self.body(depth) + self.tag("endfor"),
            lambda: self.tag(f"set {name} = {self.expression('any', 2)}") + self.body(depth),
            lambda: self.tag(f"set {name}{self.pick(['', ' | upper', ' | trim'])}") + self.body(depth) + self.tag("endset") + "{{ " + name + " }}",
            lambda: self.tag("set ns = namespace(a=1)") + self.tag("for q in range(3)") + self.tag("set ns.a = " + self.pick(["ns.a + q", "q", "ns.a ~ 'x'"])) + self.tag("endfor") + "{{ ns.a }}",
            lambda: self.tag(f"macro m(a, b={self.expression('any', 1)})") + self.body(depth) + "{{ a }}{{ b }}" + self.pick(["", "{{ varargs }}", "{{ kwargs }}", "{{ caller() if caller }}"]) + self.tag("endmacro") + self.pick(["{{ m(1) }}", "{{ m(i, b=2) }}", "{{ m() }}", "{{ m(1, 2, 3) }}", "{{ m(q=1) }}", "{% call m(2) %}in{% endcall %}", "{{ m }}", "{{ m.name }}"]),
            lambda: self.tag(f"filter {self.pick(['upper', 'trim', 'indent(2)', 'replace(s, i)', 'title'])}") + self.body(depth) + self.tag("endfilter"),
            lambda: self.tag(f"with {name} = {self.expression('any', 1)}") + self.body(depth) + self.tag("endwith"),
            lambda: self.tag("generation") + self.body(depth) + self.tag("endgeneration"),
            lambda: self.tag("raw") + "{{ x }} {% " + self.tag("endraw"),
            lambda: "{#" + self.pick(["", "-", "+"]) + " c {{ x }} " + self.pick(["", "-", "+"]) + "#}",
        ]  # fmt: skip
        return self.pick(makers)()

    def template(self):
        return self.body(3)
