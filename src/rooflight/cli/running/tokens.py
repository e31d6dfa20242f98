"""`rooflight tokens`: text files as a folder of tokens that a run reads."""

from importlib.util import find_spec
from pathlib import Path

from rooflight.cli.output import print_json, show
from rooflight.cli.parser import Namespace, Parser
from rooflight.errors import MissingExtraError, UsageError, install
from rooflight.plan.file.codec import encode
from rooflight.units import format_count, whole

HELP = "text files as a folder of tokens for `train`, with a tokenizer of yours or one made of them"
_FORM = """A folder of tokens holds
  tokens-*.bin    token ids, 16 or 32 bits each, file after file of text
  tokens-*.crc    a sum of each 64 KiB of them, compared before they are trained on
  tokenizer.json  of the library `tokenizers`
  index.json      vocabulary, counts, dtype, and the loss of knowing only how often tokens occur
"""
_LEAST_VOCAB, _MOST_VOCAB = 257, 10**6  # every byte and the end of a file


def configure(parser: Parser) -> None:
    parser.add_argument("text", nargs="*", help="files of text; none: what such a folder holds")
    parser.add_argument("--out", metavar="FOLDER", help="to be made")
    parser.add_argument("--tokenizer", metavar="FILE", help="a tokenizer.json; else one is made")
    parser.add_argument("--vocab", default="4096", help="of the one that is made (default 4096)")
    parser.set_examples("rooflight tokens", "rooflight tokens --json")


def run(args: Namespace) -> int:
    vocab = whole("--vocab", args.vocab, least=_LEAST_VOCAB, most=_MOST_VOCAB)
    if not args.text:
        if args.json:
            print_json("tokens", {"form": _FORM})
        else:
            print(_FORM, end="")
        return 0
    if args.out is None:
        raise UsageError("--out must be given", hint="rooflight tokens book.txt --out tokens")
    if find_spec("tokenizers") is None:
        raise MissingExtraError("the library tokenizers is not installed", hint=install("train"))
    from rooflight.train.tokens import write_tokens

    tokenizer = Path(args.tokenizer) if args.tokenizer else None
    found = write_tokens(
        [Path(text) for text in args.text], Path(args.out), tokenizer=tokenizer, vocab=vocab
    )
    if args.json:
        print_json("tokens", {"index": encode(found)})
    else:
        show(
            f"{format_count(found.num_tokens)} tokens of {format_count(found.vocab)} kinds in"
            f" {args.out}; a model that only knows how often each occurs has a loss of"
            f" {found.unigram_nats:.3f}"
        )
    return 0
