"""Where pre-tokenizers cut, by the `tokenizers` package with the patterns of the models' own tokenizer.json files.

    python make_splits.py ../tokenizer/splits.jsonl

One text a line: `text`, and `words`: for each name of tokenizer.ggml.pre the length in UTF-8 bytes of each word. "default" is llama.cpp's
own invention: its patterns, one after the other. Needs tokenizers (0.23.3).
"""
import json
import random
import sys

from tokenizers import Regex, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split

import token_strings

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
          r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
          r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
# The letters of deepseek-llm's second pattern.
LETTERS = """
41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A 38C 38E-3A1 3A3-3F5 3F7-481
48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45
1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC
1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139 213C-213F 2145-2149 214E 2183
2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17
FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943
"""


def letters():
    return "".join("-".join(chr(int(end, 16)) for end in r.split("-")) for r in LETTERS.split())


def isolated(*patterns):
    return [Split(Regex(p), "isolated") for p in patterns]


CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
PRE = {
    "gpt-2": [ByteLevel(add_prefix_space=False, use_regex=True)],
    "smollm": [Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)],
    "qwen2": isolated(QWEN2),
    "llama-bpe": isolated(LLAMA3),
    "tekken": isolated(TEKKEN),
    "deepseek-llm": isolated("[\r\n]", r"\s?[" + letters() + "]+", r"\s?[!-/:-~！-／：-～‘-‟\u3000-。]+", r"\s+$", CJK)
    + [Digits(individual_digits=True)],
    "deepseek-coder": isolated("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK) + [Digits(individual_digits=True)],
    "default": isolated(r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
}


def own(seed=6):
    """What tells these patterns apart: letters of mixed case beside marks, signs, digits, white space and line ends."""
    rng = random.Random(seed)
    parts = ["a", "B", "aB", "Ba", "ABC", "abC", "é", "É", "ǅ", "ʰ", "ª", "你", "好", "ㄱ", "한", "か\u3099", "ก", "\u0301", "n\u0303", "ß", "İ", "ſ", "K",
             "Ω", "ა", "Ა", "Ꙁ", "𐐀", "𞤀", "𝐀", "1", "23", "456", "7890", "٣", "²", "Ⅻ", "½", " ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", "\u00a0", "\u3000",
             "\u2028", "\x0b", "\x85", "\u180e", "\u200b", "'s", "'S", "'ll", "'LL", "'ſ", "’s", "'", "/", "//", "/\n", ".", "...", "!\n", "?!", "-", "_", "$", "+", "<=>",
             "^", "~", "|", "`", "「", "。", "！", "＂", "～", "‘", "‟", "…", "€", "©", "😀", "👩🏽‍💻", "☺️", "\u200d", "\U000e0041", "\u9fa5", "\u9fa6", "\u0800", "\ud7ff", "\ufffd"]
    mixed = ["".join(rng.choice(parts) for _ in range(rng.randint(1, 14))) for _ in range(260)]
    return mixed + ["a!\n/b", "?\r\n//\nx", "//\n/\n//x", " /\n /", "x  \u0e01", "  5", " \t5  ", "a  \u4f60  ", "HTTPServer isOK", "ǅa aǅ", "É\u0301É a\u0301B"]


def texts():
    rng = random.Random(7)
    written = [t for t in token_strings.written() if t]
    return list(dict.fromkeys(written + rng.sample(token_strings.generated(), 160) + own()))


def main():
    pre = {name: Sequence(list(parts)) for name, parts in PRE.items()}
    n = 0
    with open(sys.argv[1], "w", encoding="utf-8") as f:
        for text in texts():
            if len(text) > 600:
                continue
            words = {}
            for name, p in pre.items():
                cuts = [text[a:b] for _, (a, b) in p.pre_tokenize_str(text)]
                assert "".join(cuts) == text, (name, text)
                words[name] = [len(c.encode()) for c in cuts]
            f.write(json.dumps(dict(text=text, words=words), separators=(",", ":")) + "\n")
            n += 1
    print(f"{n} texts, {len(pre)} pre-tokenizers")


if __name__ == "__main__":
    main()
