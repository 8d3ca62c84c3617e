"""The command ``executorch-wgpu``.

One file a command. Each imports only click at the top, so that ``--help`` answers at once; what is
heavy (wgpu, numpy, rich, torch) is imported where it is used. ``devices``, ``inspect`` and
``bench`` need no torch.
"""

from __future__ import annotations

import warnings
from typing import Any

import click

from executorch_wgpu.scripts.bench.command import bench
from executorch_wgpu.scripts.devices import devices
from executorch_wgpu.scripts.eval_text import eval_text
from executorch_wgpu.scripts.export_llama import export_llama
from executorch_wgpu.scripts.inspect_file import inspect_file
from executorch_wgpu.scripts.run_text import run_text


class _Group(click.Group):
    """Turns this project's errors into one line and exit code 1; ``--debug`` shows where from."""

    def invoke(self, ctx: click.Context) -> Any:
        plain = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *rest: Any) -> None:
            if category.__name__ == "SoftwareAdapterWarning":
                click.echo(f"note: {message}", err=True)
            else:
                plain(message, category, *rest)

        warnings.showwarning = show
        try:
            return super().invoke(ctx)
        except Exception as error:
            from executorch_wgpu.serialization.errors import WgpuDelegateError

            if ctx.params.get("debug") or not isinstance(error, WgpuDelegateError):
                raise
            raise click.ClickException(str(error)) from error
        finally:
            warnings.showwarning = plain


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="executorch-wgpu", prog_name="executorch-wgpu")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """Run, measure and look into ExecuTorch programs on any GPU."""


main.add_command(devices)
main.add_command(inspect_file)
main.add_command(bench)
main.add_command(export_llama)
main.add_command(run_text)
main.add_command(eval_text)

if __name__ == "__main__":
    main()
