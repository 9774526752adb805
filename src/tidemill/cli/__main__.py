from tidemill.cli.main import main

main()
